"""Checks of the engine around the model: warm-up, batching, memory and time limits."""

import contextlib
import statistics
from dataclasses import replace
from pathlib import Path

import psutil

from rayinfer_deployments.cli.doctor.model_checks.checked_model import CheckedModel
from rayinfer_deployments.cli.doctor.model_checks.results import CheckResult, failed, passed, warned

NUM_STEADY = 20  # requests after the first
MOST_WARM_UP_RATIO = 2.0  # of the first request's time to the median of the others
WARM_UP_NOISE_S = 0.005
NUM_BATCHED, NUM_ROUNDS = 16, 3
LEAST_BATCH_GAIN, MOST_STEP_RATIO = 0.8, 2.5  # of items one by one; of a step to the target
ADVISED_MEMORY_SHARE, NEEDED_MEMORY_SHARE = 0.7, 0.9
NUM_LARGEST = 4
GROWTH_BYTES = 64 * 2**20  # of one series of equal steps after another, which is no cache
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
MIB = 2**20


def check_warm_up(model: CheckedModel) -> CheckResult:
    """Time the first requests as a client would meet them: after an engine's own warm-up, before anything else."""
    name = "warm-up"
    reports = []
    for size, request in (("short", model.samples.short()), ("long", model.samples.long())):
        first = model.compute([request]).seconds
        steady = [model.compute([request]).seconds for _ in range(NUM_STEADY)]
        median = statistics.median(steady)
        reports.append(f"{size}: first {1e3 * first:.1f} ms, median {1e3 * median:.1f} ms")
        # A machine that is busy has slow requests at any time, a cold model only the first.
        if first > MOST_WARM_UP_RATIO * median + WARM_UP_NOISE_S and first > max(steady):
            reason = f"{reports[-1]}: {first / median:.1f}x, at most {MOST_WARM_UP_RATIO:g}x is expected"
            return failed(name, reason, "compute once in the factory, at each size that is compiled for")
        if not model.samples.takes_text:
            break
    return passed(name, "; ".join(reports))


def check_batching(model: CheckedModel) -> CheckResult:
    """Compute many requests one by one, then at once, and compare the longest step with the target."""
    engine = model.engine
    requests = [model.samples.short(number) for number in range(NUM_BATCHED)]
    alone, together, num_steps = [], [], []
    for _ in range(NUM_ROUNDS):
        alone.append(sum(model.compute([request]).seconds for request in requests))
        steps_before = engine.stats.num_steps_total
        together.append(model.compute(requests).seconds)
        num_steps.append(max(1, engine.stats.num_steps_total - steps_before))
    return _judge_batching(model, min(alone), min(together), round(statistics.median(num_steps)))


def _judge_batching(model: CheckedModel, alone: float, together: float, num_steps: int) -> CheckResult:
    name = "batching"
    gain, step_s, target_s = alone / together, together / num_steps, model.config.target_step_ms / 1e3
    reason = f"{NUM_BATCHED} at once in {num_steps} steps, {gain:.2f}x as fast as one by one"
    if gain < LEAST_BATCH_GAIN:
        return failed(name, reason, "a smaller --target-step-ms, or --max-num-seqs 1")
    if model.generates:
        return passed(name, reason)
    longest = model.seconds_of([model.samples.longest()])
    reason += (
        f"; steps of {1e3 * step_s:.1f} ms, the longest input {1e3 * longest:.1f} ms, target {1e3 * target_s:g} ms"
    )
    if num_steps < NUM_BATCHED and step_s > MOST_STEP_RATIO * target_s:
        return warned(name, reason, "a quieter machine, more threads, or --profile throughput")
    if longest > MOST_STEP_RATIO * target_s:
        return warned(name, reason, "a smaller --max-model-len, a smaller model, or a larger --target-step-ms")
    return passed(name, reason)


def check_memory(model: CheckedModel) -> CheckResult:
    """Measure the peak of the process with its largest steps, and whether equal steps take more and more."""
    name = "memory"
    limit, whose = _memory_limit(model.expectations.memory_limit_bytes)
    _reset_peak()
    largest = [model.samples.longest(number) for number in range(NUM_LARGEST)]
    sizes = []
    for _ in range(3):
        model.compute(largest)
        sizes.append(psutil.Process().memory_info().rss)
    peak = max(_peak_bytes(), *sizes)
    growth = sizes[2] - sizes[1]
    reason = f"peak {peak / MIB:,.0f} MiB, {peak / limit:.0%} of {limit / MIB:,.0f} MiB ({whose})"
    if growth > GROWTH_BYTES:
        reason += f"; {growth / MIB:,.0f} MiB more with every {NUM_LARGEST} equal inputs"
        return failed(name, reason, "look for lists and caches in the model that only grow")
    if peak > NEEDED_MEMORY_SHARE * limit:
        return failed(name, reason, "a smaller model, --quantization int8, fewer --replicas, or more memory")
    if peak > ADVISED_MEMORY_SHARE * limit:
        return warned(name, reason, "leave a third of the memory to bursts and to the routers")
    return passed(name, reason)


def check_timeouts(model: CheckedModel) -> CheckResult:
    """Check that an overdue request is not computed, and that the longest input fits the service's limit."""
    name, timeout_s = "timeouts", model.expectations.request_timeout_s
    longest = model.compute([model.samples.longest()]).seconds
    overdue = replace(model.samples.longest(1), timeout_s=1e-6)
    reason = model.compute([overdue]).deltas[0].finish_reason
    if reason != "timeout":
        return failed(name, f"a request whose time is over has ended with {reason!r}", "report this as a bug")
    measured = f"an overdue request is not computed; the longest input takes {longest:.3f} s"
    if timeout_s is None:
        remedy = "--request-timeout SECONDS, here and with serve"
        return warned(name, f"{measured}, but there is no limit: a stuck request holds its client", remedy)
    if longest > timeout_s:
        remedy = "a longer --request-timeout, or a smaller --max-model-len"
        return failed(name, f"{measured}, more than the limit of {timeout_s:g} s", remedy)
    return passed(name, f"{measured}, the limit is {timeout_s:g} s")


def _memory_limit(given: int | None) -> tuple[int, str]:
    """Return how much memory this process may use, and whose limit that is."""
    if given is not None:
        return given, "as given"
    memory = psutil.virtual_memory()
    free = memory.available + psutil.Process().memory_info().rss
    with contextlib.suppress(OSError, ValueError):
        return min(int(CONTAINER_LIMIT.read_text()), free), "of the container"
    return free, "free on this machine"


def _reset_peak() -> None:
    """Have Linux measure the peak anew; without the right to, it is that of the whole life."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
