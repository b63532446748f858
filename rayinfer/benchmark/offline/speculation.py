"""Speculative decoding beside decoding without it, in turns, over kinds of task and numbers of streams."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rayinfer.benchmark.offline.speculation_tasks import KINDS, tasks
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.errors import RayinferError
from rayinfer.llm import LLM
from rayinfer.outputs import RequestOutput
from rayinfer.sampling_params import SamplingParams, Speculation

HEADS = ("task", "streams", "off tok/s", "tok/s", "gain", "rounds' range", "accepted %", "tokens a step and stream")

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """Rates of a kind of task; `gain` is the median over the rounds, of one rate over the other."""

    kind: str
    num_streams: int
    off_tok_s: float
    tok_s: float
    gain: float
    range: tuple[float, float]  # least and most of the rounds
    accepted: float  # share of draft tokens
    tokens_a_step: float  # of a stream, in steps that decode it


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationReport:
    """Result of `rayinfer bench speculation`."""

    command: str
    model: str
    kernels: str
    speculation: Speculation
    temperature: float
    num_tokens: int  # of an answer, at most
    num_rounds: int
    results: list[TaskResult]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the gains."""
        rows = []
        for each in self.results:
            low, high = each.range
            rates = (each.off_tok_s, each.tok_s, each.gain, f"{low} to {high}")
            rows.append((each.kind, each.num_streams, *rates, round(100 * each.accepted, 1), each.tokens_a_step))
        return [Table(f"speculation {self.speculation}, {self.model}, temperature {self.temperature}", HEADS, rows)]


def run_speculation_benchmark(
    model: str,
    settings: Mapping[str, Any],
    streams: Sequence[int],
    *,
    speculation: Speculation,
    num_tokens: int,
    num_rounds: int,
    temperature: float,
    command: str,
    log: Log,
) -> SpeculationReport:
    """Measure rounds with and without drafts for each kind of task and number of streams; answers must be equal.

    Prompts are cached before, so that the rates are of decoding. Recent answers are not kept: a round would find
    those of the one before.
    """
    with LLM(model, **{**settings, "recent_answers_bytes": 0}) as llm:
        params = SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=0)
        results = [
            _measure(llm, kind, number, replace(params, speculation=speculation), num_rounds, log)
            for number in streams
            for kind in KINDS
        ]
        kernels = llm.description.kernels
    return SpeculationReport(
        command=command,
        model=model,
        kernels=kernels,
        speculation=speculation,
        temperature=temperature,
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        results=results,
    )


def _measure(llm: LLM, kind: str, num_streams: int, params: SamplingParams, num_rounds: int, log: Log) -> TaskResult:
    prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in tasks(kind, num_streams)]
    modes = {False: replace(params, speculation="off"), True: params}
    _answers(llm, prompts, modes[False])
    rates: dict[bool, list[float]] = {True: [], False: []}
    num_tokens = num_drafts = num_accepted = 0
    for number in range(num_rounds):
        log(f"{kind}, {num_streams} streams: round {number + 1} of {num_rounds}")
        answers: dict[bool, list[list[int]]] = {}
        for drafts in (False, True) if number % 2 == 0 else (True, False):
            before = llm.stats
            started = time.perf_counter()
            answers[drafts] = _answers(llm, prompts, modes[drafts])
            num_new = sum(map(len, answers[drafts]))
            rates[drafts].append(num_new / (time.perf_counter() - started))
            if drafts:
                num_drafts += llm.stats.draft_tokens_total - before.draft_tokens_total
                num_accepted += llm.stats.accepted_draft_tokens_total - before.accepted_draft_tokens_total
                num_tokens += num_new
        if answers[True] != answers[False]:
            raise RayinferError(f"{kind}: answers with and without drafts differ")
    gains = [ours / theirs for ours, theirs in zip(rates[True], rates[False], strict=True)]
    return TaskResult(
        kind=kind,
        num_streams=num_streams,
        off_tok_s=round(statistics.median(rates[False]), 1),
        tok_s=round(statistics.median(rates[True]), 1),
        gain=round(statistics.median(gains), 2),
        range=(round(min(gains), 2), round(max(gains), 2)),
        accepted=num_accepted / num_drafts if num_drafts else 0.0,
        tokens_a_step=round(num_tokens / (num_tokens - num_accepted), 2),
    )


def _answers(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
    outputs: list[RequestOutput] = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]
