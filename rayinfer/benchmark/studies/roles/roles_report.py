"""Report of engines with roles under a mixed load: simulated, and measured on this machine."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace
from rayinfer.benchmark.studies.roles.measured_roles import measure
from rayinfer.benchmark.studies.roles.mixed_load import HEADS, MixedLoad, Outcome, Seen, outcome
from rayinfer.benchmark.studies.roles.simulated_roles import simulate


@dataclass(frozen=True, kw_only=True, slots=True)
class RolesReport:
    """All outcomes, with the load and the settings of the simulation."""

    command: str
    model: str
    load: MixedLoad
    num_engines: int
    pace: EnginePace
    transfer_token_s: float
    num_rounds: int
    outcomes: list[Outcome]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return all outcomes, with the load as title."""
        load, pace = self.load, self.pace
        title = (
            f"{load.duration_s:g} s of {load.chats_per_s:g} chats a second ({load.chat_tokens[0]} prompt tokens, "
            f"{load.chat_tokens[1]} of the answer) and {load.long_per_s:g} long prompts ({load.long_tokens[0]} and "
            f"{load.long_tokens[1]}). Simulated engines: a step of {1e3 * pace.step_s:g} ms, "
            f"{1 / pace.prompt_token_s:,.0f} prompt tokens a second in chunks of {pace.chunk_tokens}, "
            f"{1e3 * pace.output_token_s:g} ms for each running request, {1e6 * self.transfer_token_s:g} us to hand "
            f"a token over. Measured: {self.model}, engines of one thread each in one "
            f"process, {self.num_rounds} rounds in turns"
        )
        return [Table(title, HEADS, [each.row() for each in self.outcomes])]


def run_roles_benchmark(
    model: str,
    folder: Path,
    load: MixedLoad,
    pace: EnginePace,
    *,
    num_engines: int,
    num_prefill: int,
    transfer_token_s: float,
    settings: Mapping[str, Any],
    num_rounds: int,
    command: str,
    log: Callable[[str], None],
) -> RolesReport:
    """Simulate the load on engines that do both and on as many with roles, and measure it in rounds, in turns."""
    names = {
        f"{num_engines} for both": 0,
        f"{num_prefill} prefill, {num_engines - num_prefill} decode": num_prefill,
    }
    outcomes = [
        outcome(
            "simulated",
            name,
            simulate(load, pace, num_engines=num_engines, num_prefill=count, transfer_token_s=transfer_token_s),
        )
        for name, count in names.items()
    ]
    seen = {name: Seen() for name in names}
    token_ids: dict[str, list[list[int]]] = {name: [] for name in names}
    for number in range(num_rounds):
        for name, count in sorted(names.items(), reverse=number % 2 == 1):
            log(f"round {number + 1} of {num_rounds}: {name}")
            run = f"round {number} of {count}"
            measured = asyncio.run(
                measure(folder, load, dict(settings), num_engines=num_engines, num_prefill=count, run=run)
            )
            seen[name].add(measured.seen)
            token_ids[name] += measured.token_ids
    first = next(iter(names))
    for name in names if num_rounds else ():
        same = None if name == first else token_ids[name] == token_ids[first]
        outcomes.append(outcome("measured", name, seen[name], same_tokens=same))
    return RolesReport(
        command=command,
        model=model,
        load=load,
        num_engines=num_engines,
        pace=pace,
        transfer_token_s=transfer_token_s,
        num_rounds=num_rounds,
        outcomes=outcomes,
    )
