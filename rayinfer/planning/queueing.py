"""Queueing estimate of one engine: arrivals at random, prompts one after another, answers side by side."""

import math
from dataclasses import dataclass

from rayinfer.planning.step_times import StepTimes

ROUNDS = 200
PRECISION = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Requests of equal length, and how many an engine runs and computes at once."""

    prompt_len: int
    output_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def mean_context(self) -> float:
        """Return the tokens that a running request has cached, on average."""
        return self.prompt_len + self.output_len / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLoad:
    """State of an engine at some rate of requests; all of it is estimated."""

    requests_per_s: float
    num_running: float
    prefill_share: float  # of the time, with prompts
    ttft_mean_s: float
    ttft_p95_s: float
    itl_s: float


def engine_load(times: StepTimes, workload: Workload, requests_per_s: float, most_running: float) -> EngineLoad | None:
    """Return the state in which an engine settles; None where requests come faster than it serves them.

    Of every second the share `requests_per_s * prefill_s` goes to prompts; decoding steps have the rest. The number of
    running requests follows from Little's law, and the wait for the prompts before from M/D/1.
    """
    prefill_s = times.prefill_s(workload.prompt_len)
    share = requests_per_s * prefill_s
    if share >= 1:
        return None
    running = 0.0
    for _ in range(ROUNDS):
        itl_s = times.decode_step_s(max(1.0, running), workload.mean_context) / (1 - share)
        following = requests_per_s * (workload.output_len - 1) * itl_s
        if following > most_running:
            return None
        if abs(following - running) < PRECISION:
            break
        running = following
    else:
        return None
    step_s = times.decode_step_s(max(1.0, running), workload.mean_context)
    # A prompt's chunks share their steps with the running requests' tokens, and the first waits for a step to end.
    busy = min(1.0, running)
    num_chunks = math.ceil(workload.prompt_len / workload.max_num_batched_tokens)
    beside = busy * (num_chunks + 0.5) * step_s
    wait_mean_s = share * prefill_s / (2 * (1 - share))
    # The wait's tail is nearly exponential, and no request waits with probability 1 - share.
    wait_p95_s = wait_mean_s / share * math.log(share / 0.05) if share > 0.05 else 0.0
    return EngineLoad(
        requests_per_s=requests_per_s,
        num_running=running,
        prefill_share=share,
        ttft_mean_s=wait_mean_s + prefill_s + beside,
        ttft_p95_s=max(wait_mean_s, wait_p95_s) + prefill_s + beside,
        itl_s=itl_s,
    )


def highest_rate(
    times: StepTimes, workload: Workload, most_running: float, ttft_s: float, itl_s: float
) -> EngineLoad | None:
    """Return the state at the highest rate of requests that keeps both objectives; None if no rate does."""
    low, high = 0.0, 1 / times.prefill_s(workload.prompt_len)
    best: EngineLoad | None = None
    for _ in range(60):
        rate = (low + high) / 2
        load = engine_load(times, workload, rate, most_running)
        if load is not None and load.ttft_p95_s <= ttft_s and load.itl_s <= itl_s:
            low, best = rate, load
        else:
            high = rate
    return best if best is not None and best.requests_per_s > PRECISION else None
