"""Workloads of the comparison, and the names of their figures."""

import statistics
from collections.abc import Callable

from rayinfer.benchmark.load.workloads import Workload, offline_workload
from rayinfer.benchmark.peers.system_under_test import Figures

BATCH, STREAM, PREFILL, HTTP, START = "batch", "stream", "prefill", "http", "start"
ENGINE_WORKS = (BATCH, STREAM, PREFILL)
WORKS = (*ENGINE_WORKS, HTTP, START)

BATCH_REQUESTS = 64  # 32 to 256 tokens in and out, seed 0: 9,453 tokens in, 8,946 out
STREAM_LEN = 128  # tokens in, and out
PREFILL_LEN = 512
SHORT_REPEATS = 3  # of works that take fractions of a second, within one turn

HTTP_REQUESTS = {1: 8, 8: 48, 32: 128}  # by the number of closed-loop streams
HTTP_INPUT_LEN, HTTP_OUTPUT_LEN = 128, 64

TitleUnit = tuple[str, str]
FIGURES: dict[str, TitleUnit] = {
    "batch": ("64 requests", "output tok/s"),
    "stream": ("one stream, decode", "tok/s"),
    "stream_with_prefill": ("one stream with its prefill", "tok/s"),
    "prefill": ("prefill of 512 tokens", "tok/s"),
    **{
        f"http_{streams}": (f"HTTP, {streams} stream{'s' * (streams > 1)}", "output tok/s") for streams in HTTP_REQUESTS
    },
    **{f"ttft_p50_{streams}": (f"first token p50, {streams}", "ms") for streams in HTTP_REQUESTS},
    **{f"ttft_p99_{streams}": (f"first token p99, {streams}", "ms") for streams in HTTP_REQUESTS},
    "ready": ("start to ready", "s"),
}
LESS_IS_BETTER = frozenset(name for name, (_, unit) in FIGURES.items() if unit in ("ms", "s"))

Timer = Callable[[Workload], float]  # does the work and says how many seconds it took


def measure_engine(work: str, seconds_for: Timer, vocab_size: int) -> Figures:
    """Do one of ENGINE_WORKS with any engine that can answer prompts."""
    if work == BATCH:
        workload = offline_workload(BATCH_REQUESTS, vocab_size=vocab_size)
        return {"batch": workload.num_output_tokens / seconds_for(workload)}
    if work == STREAM:
        first, whole = (_median_seconds(seconds_for, STREAM_LEN, length, vocab_size) for length in (1, STREAM_LEN))
        decoding = whole - first  # no more than the clock's resolution for an engine that answers at once
        rate = (STREAM_LEN - 1) / decoding if decoding > 0 else float("nan")
        return {"stream": rate, "stream_with_prefill": STREAM_LEN / whole}
    return {"prefill": PREFILL_LEN / _median_seconds(seconds_for, PREFILL_LEN, 1, vocab_size)}


def warm_up_workload(vocab_size: int) -> Workload:
    """Draw a few short requests for warm-up."""
    return offline_workload(8, (16, 32), (16, 32), vocab_size, seed=9)


def _median_seconds(seconds_for: Timer, input_len: int, output_len: int, vocab_size: int) -> float:
    workload = offline_workload(1, (input_len, input_len), (output_len, output_len), vocab_size)
    return statistics.median(seconds_for(workload) for _ in range(SHORT_REPEATS))
