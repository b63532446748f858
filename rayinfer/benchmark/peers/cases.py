"""Cases of the comparison, and the names of their figures."""

import statistics
from collections.abc import Callable

from rayinfer.benchmark.load.workloads import Workload, offline_workload

BATCH, STREAM, PREFILL, HTTP, START = "batch", "stream", "prefill", "http", "start"
ENGINE_CASES = (BATCH, STREAM, PREFILL)
CASES = (*ENGINE_CASES, HTTP, START)

BATCH_REQUESTS = 64  # 32 to 256 tokens in and out, seed 0: 9,453 tokens in, 8,946 out
STREAM_LEN = 128  # tokens in, and out
PREFILL_LEN = 512
SHORT_REPEATS = 3  # of cases that take fractions of a second, within one round

HTTP_REQUESTS = {1: 8, 8: 48, 32: 128}  # by the number of closed-loop streams, beside BATCH_REQUESTS in the batch
HTTP_INPUT_LEN, HTTP_OUTPUT_LEN = 128, 64
SERVER_SETTLE_S = 8.0  # from ready to the load, for what servers do behind their start

LLAMA_BENCH_OPTIONS = {
    STREAM: ["-p", "0", "-n", str(STREAM_LEN), "-d", str(STREAM_LEN)],  # -d: tokens of the context before
    PREFILL: ["-p", str(PREFILL_LEN), "-n", "0"],
}

Figures = dict[str, float]  # by the names of FIGURES
FIGURES: dict[str, tuple[str, str]] = {  # title and unit
    "batch": (f"{BATCH_REQUESTS} requests", "output tok/s"),
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

Timer = Callable[[Workload], float]  # runs a workload and returns its seconds


def http_requests(num_requests: int) -> dict[int, int]:
    """Return the number of requests by that of streams, in proportion to the batch's; every stream has one."""
    return {streams: max(streams, number * num_requests // BATCH_REQUESTS) for streams, number in HTTP_REQUESTS.items()}


def measure_engine(case: str, seconds_for: Timer, vocab_size: int, num_requests: int = BATCH_REQUESTS) -> Figures:
    """Run one of ENGINE_CASES on any engine, the batch with `num_requests`."""
    if case == BATCH:
        workload = offline_workload(num_requests, vocab_size=vocab_size)
        return {"batch": workload.num_output_tokens / seconds_for(workload)}
    if case == STREAM:
        first, whole = (_median_seconds(seconds_for, STREAM_LEN, length, vocab_size) for length in (1, STREAM_LEN))
        decoding = whole - first  # 0 for an engine below the clock's resolution
        rate = (STREAM_LEN - 1) / decoding if decoding > 0 else float("nan")
        return {"stream": rate, "stream_with_prefill": STREAM_LEN / whole}
    return {"prefill": PREFILL_LEN / _median_seconds(seconds_for, PREFILL_LEN, 1, vocab_size)}


def warm_up_workload(vocab_size: int) -> Workload:
    """Draw a few short requests for warm-up."""
    return offline_workload(8, (16, 32), (16, 32), vocab_size, seed=9)


def _median_seconds(seconds_for: Timer, input_len: int, output_len: int, vocab_size: int) -> float:
    workload = offline_workload(1, (input_len, input_len), (output_len, output_len), vocab_size)
    return statistics.median(seconds_for(workload) for _ in range(SHORT_REPEATS))
