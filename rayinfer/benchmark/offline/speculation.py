"""Speculative decoding beside none and beside a peer, in turns, over kinds of task and numbers of streams."""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rayinfer.benchmark.offline.llama_cpp_peer import MODES, LlamaCppPeer
from rayinfer.benchmark.offline.speculation_report import OFF, PeerReport, PeerResult, SpeculationReport, TaskResult
from rayinfer.benchmark.offline.speculation_runs import (
    Log,
    Run,
    Work,
    accepted_share,
    median_rate,
    ratios,
    run_rounds,
)
from rayinfer.benchmark.offline.speculation_tasks import KINDS, tasks
from rayinfer.benchmark.peers.systems import LLAMA_CPP, Setup
from rayinfer.errors import ConfigError, RayinferError
from rayinfer.llm import LLM
from rayinfer.outputs import RequestOutput
from rayinfer.sampling_params import SamplingParams, Speculation

OWN_OFF, OWN = "rayinfer off", "rayinfer"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Runs:
    """Runs of all systems on a kind of task, by their names."""

    kind: str
    num_streams: int
    by_system: Mapping[str, Sequence[Run]]


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
    peer_setup: Setup | None = None,
) -> SpeculationReport:
    """Measure rounds with and without drafts for each kind of task and number of streams; answers must be equal.

    Prompts are cached before, so that the rates are of decoding. Recent answers are not kept: a round would find
    those of the one before. With `peer_setup` llama.cpp runs in the same rounds, on the same prompts.
    """
    if peer_setup is not None and temperature > 0:
        raise ConfigError(f"beside a peer the temperature must be 0, got {temperature}: answers would differ")
    with (
        LLM(model, **{**settings, "recent_answers_bytes": 0}) as llm,
        tempfile.TemporaryDirectory(prefix="rayinfer-bench-") as folder,
    ):
        peer = None if peer_setup is None else LlamaCppPeer(peer_setup, llm.tokenizer, Path(folder))
        params = SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=0, speculation=speculation)
        runs = [_measure(llm, peer, kind, number, params, num_rounds, log) for number in streams for kind in KINDS]
        kernels = llm.description.kernels
        peer_report = None if peer is None else _peer_report(peer, runs)
    return SpeculationReport(
        command=command,
        model=model,
        kernels=kernels,
        speculation=speculation,
        temperature=temperature,
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        results=[_own_result(each) for each in runs],
        peer=peer_report,
    )


def _measure(
    llm: LLM,
    peer: LlamaCppPeer | None,
    kind: str,
    num_streams: int,
    params: SamplingParams,
    num_rounds: int,
    log: Log,
) -> _Runs:
    prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in tasks(kind, num_streams)]
    without = replace(params, speculation="off")
    _run(llm, prompts, without)
    systems: dict[str, Callable[[], Run]] = {
        OWN_OFF: partial(_run, llm, prompts, without),
        OWN: partial(_run, llm, prompts, params),
    }
    if peer is not None:
        assert params.max_tokens is not None
        work = Work(prompts=prompts, num_tokens=params.max_tokens)
        modes = {name: mode for name, mode in MODES.items() if mode.has_streams(num_streams)}
        systems |= {f"{LLAMA_CPP} {name}": partial(peer.answer, mode, work) for name, mode in modes.items()}
    runs = run_rounds(systems, num_rounds, lambda text: log(f"{kind}, {num_streams} streams: {text}"))
    if any(run.answers != other.answers for run, other in zip(runs[OWN], runs[OWN_OFF], strict=True)):
        raise RayinferError(f"{kind}: answers with and without drafts differ")
    return _Runs(kind=kind, num_streams=num_streams, by_system=runs)


def _run(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Run:
    before = llm.stats
    started = time.perf_counter()
    outputs: list[RequestOutput] = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    answers = [output.outputs[0].token_ids for output in outputs]
    num_tokens = sum(map(len, answers))
    return Run(
        tok_s=num_tokens / seconds,
        num_tokens=num_tokens,
        num_drafts=llm.stats.draft_tokens_total - before.draft_tokens_total,
        num_accepted=llm.stats.accepted_draft_tokens_total - before.accepted_draft_tokens_total,
        answers=answers,
    )


def _own_result(runs: _Runs) -> TaskResult:
    own, without = runs.by_system[OWN], runs.by_system[OWN_OFF]
    num_tokens, num_accepted = sum(run.num_tokens for run in own), sum(run.num_accepted for run in own)
    gains = ratios(own, without)
    return TaskResult(
        kind=runs.kind,
        num_streams=runs.num_streams,
        off_tok_s=median_rate(without),
        tok_s=median_rate(own),
        gain=round(statistics.median(gains), 2),
        range=_ends(gains),
        accepted=accepted_share(own),
        tokens_a_step=round(num_tokens / (num_tokens - num_accepted), 2),
    )


def _peer_report(peer: LlamaCppPeer, runs: Sequence[_Runs]) -> PeerReport:
    results = [_peer_result(each, mode) for each in runs for mode in MODES if f"{LLAMA_CPP} {mode}" in each.by_system]
    return PeerReport(
        name=LLAMA_CPP, version=peer.version(), model=peer.model_file, commands=peer.commands(), results=results
    )


def _peer_result(runs: _Runs, mode: str) -> PeerResult:
    its, its_off = runs.by_system[f"{LLAMA_CPP} {mode}"], runs.by_system[f"{LLAMA_CPP} {OFF}"]
    own = runs.by_system[OWN_OFF if mode == OFF else OWN]
    gains, own_ratios = ratios(its, its_off), ratios(own, its)
    num_drafts, num_tokens = sum(run.num_drafts for run in its), sum(run.num_tokens for run in its)
    return PeerResult(
        kind=runs.kind,
        num_streams=runs.num_streams,
        mode=mode,
        tok_s=median_rate(its),
        gain=round(statistics.median(gains), 2),
        range=_ends(gains),
        accepted=accepted_share(its),
        drafted=round(num_drafts / num_tokens, 2),
        same=_same_share(own[0], its[0]),
        ratio=round(statistics.median(own_ratios), 2),
        ratio_range=_ends(own_ratios),
    )


def _same_share(own: Run, its: Run) -> float | None:
    """Return the share of our tokens that come before the first one that differs."""
    if own.answers is None or its.answers is None:
        return None
    num_same = 0
    for answer, other in zip(own.answers, its.answers, strict=True):
        pairs = zip(answer, other, strict=False)
        num_same += next((index for index, (one, two) in enumerate(pairs) if one != two), min(len(answer), len(other)))
    return num_same / own.num_tokens


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return round(min(values), 2), round(max(values), 2)
