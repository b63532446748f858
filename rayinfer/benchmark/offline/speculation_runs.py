"""Runs of the same prompts, with and without drafts, by several systems in turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Prompts that are answered at once, greedily or not, each with so many tokens at most."""

    prompts: Sequence[Sequence[int]]
    num_tokens: int  # of an answer, at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Answers of one system to all prompts, once."""

    tok_s: float  # of decoding, all streams together
    num_tokens: int
    num_drafts: int
    num_accepted: int  # of the draft tokens
    answers: Sequence[Sequence[int]] | None  # None where a system does not return token ids


def run_rounds(systems: Mapping[str, Callable[[], Run]], num_rounds: int, log: Log) -> dict[str, list[Run]]:
    """Run every system once a round, in alternating order; returns the runs by the systems' names."""
    runs: dict[str, list[Run]] = {name: [] for name in systems}
    for number in range(num_rounds):
        for name in list(systems)[:: 1 if number % 2 == 0 else -1]:
            log(f"round {number + 1} of {num_rounds}, {name}")
            runs[name].append(systems[name]())
    return runs


def median_rate(runs: Sequence[Run]) -> float:
    """Return the median of the runs' rates."""
    return round(statistics.median(run.tok_s for run in runs), 1)


def ratios(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """Return each round's rate over that of another system in the same round."""
    return [run.tok_s / other.tok_s for run, other in zip(runs, others, strict=True)]


def accepted_share(runs: Sequence[Run]) -> float:
    """Return the share of draft tokens that was accepted."""
    num_drafts = sum(run.num_drafts for run in runs)
    return sum(run.num_accepted for run in runs) / num_drafts if num_drafts else 0.0
