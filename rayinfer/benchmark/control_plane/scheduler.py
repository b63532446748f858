"""Control-plane overhead of the engine without a model: planning and applying steps, adding requests, memory."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from rayinfer.benchmark.control_plane.fixed_token_executor import FixedTokenExecutor, fixed_tokens
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.scheduling.scheduler import Scheduler
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.sampling_params import SamplingParams

BLOCK_SIZE = 16
VOCAB_SIZE = 50_000
EOS_TOKEN_IDS = (2,)
PROMPT_LENGTHS = (32, 96)  # of the running requests, so that some cross a block's border in every step
ADDED_PROMPT_LENGTHS = (16, 128, 1024, 8192)
ADDITIONS = 1000  # measured for each of these lengths
CHURN_SEQS = 256  # requests that run at once while RSS is watched
CHURN_PROMPT_LEN, CHURN_OUTPUT_LEN = 20, 2  # so each leaves a block in the prefix cache
ENDLESS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Microseconds for one step in which every running request decodes one token."""

    num_running: int
    num_queued: int
    plan_us: float  # medians
    apply_us: float
    median_us: float  # of both together
    p95_us: float
    num_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AdditionTimes:
    """Microseconds to add one request to the engine."""

    prompt_tokens: int
    median_us: float
    p95_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Churn:
    """Memory before and after a great many short requests."""

    num_requests: int
    us_per_request: float
    rss_before_bytes: int  # after the first tenth of them
    rss_after_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerReport:
    """Result of the scheduler benchmark."""

    steps: list[StepTimes]
    additions: list[AdditionTimes]
    churn: Churn | None
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return steps, additions and memory."""
        steps = [
            (each.num_running, each.num_queued, each.plan_us, each.apply_us, each.median_us, each.p95_us)
            for each in self.steps
        ]
        additions = [(each.prompt_tokens, each.median_us, each.p95_us) for each in self.additions]
        tables = [
            Table("microseconds per step (medians)", ("running", "queued", "plan", "apply", "step", "p95"), steps),
            Table("microseconds to add a request", ("prompt tokens", "median", "p95"), additions),
        ]
        if (churn := self.churn) is not None:
            mib = churn.rss_before_bytes / 2**20, churn.rss_after_bytes / 2**20
            heads = "requests", "µs each", "RSS before, MiB", "RSS after, MiB"
            tables.append(Table("memory over many requests", heads, [(churn.num_requests, churn.us_per_request, *mib)]))
        return tables


@dataclass(frozen=True, slots=True)
class _ControlPlane:
    """An engine and its scheduler, which can also be driven without it."""

    engine: Engine
    scheduler: Scheduler

    def step(self) -> tuple[float, float]:
        """Do one step and return the seconds that planning it and applying its tokens took."""
        started = time.perf_counter()
        plan = self.scheduler.plan()
        planned = time.perf_counter()
        assert plan is not None
        tokens = fixed_tokens(plan)
        computed = time.perf_counter()
        deltas = self.scheduler.apply(plan, tokens)
        applied = time.perf_counter()
        del deltas  # as their consumers do
        return planned - started, applied - computed


def run_scheduler_benchmark(
    *,
    running: Sequence[int],
    num_queued: int,
    num_steps: int,
    num_requests: int,
    num_additions: int = ADDITIONS,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda num_ended: None,
) -> SchedulerReport:
    """Measure steps with and without a queue in turn, then additions, then memory over `num_requests` requests."""
    steps = [times for count in running for times in measure_steps(count, num_queued, num_steps, seed)]
    return SchedulerReport(
        steps=steps,
        additions=[measure_additions(length, num_additions, seed) for length in ADDED_PROMPT_LENGTHS],
        churn=measure_churn(num_requests, on_progress) if num_requests else None,
    )


def measure_steps(num_running: int, num_queued: int, num_steps: int, seed: int) -> list[StepTimes]:
    """Time decoding steps of two control planes in turn, one of which has a queue; the prefix cache is full."""
    planes = [_busy_plane(num_running, count, num_steps, seed) for count in (0, num_queued)]
    seconds: list[list[tuple[float, float]]] = [[], []]
    for _ in range(num_steps):
        for plane, times in zip(planes, seconds, strict=True):
            times.append(plane.step())
    for plane in planes:
        stats = plane.engine.stats
        assert (stats.num_running, stats.num_preemptions_total) == (num_running, 0), (
            "some request did not run in all steps"
        )
    return [_step_times(num_running, count, times) for count, times in zip((0, num_queued), seconds, strict=True)]


def _step_times(num_running: int, num_queued: int, seconds: list[tuple[float, float]]) -> StepTimes:
    totals = [plan + apply for plan, apply in seconds]
    return StepTimes(
        num_running=num_running,
        num_queued=num_queued,
        plan_us=_median_us([plan for plan, _ in seconds]),
        apply_us=_median_us([apply for _, apply in seconds]),
        median_us=_median_us(totals),
        p95_us=_p95_us(totals),
        num_steps=len(seconds),
    )


def _busy_plane(num_running: int, num_queued: int, num_steps: int, seed: int) -> _ControlPlane:
    """Build a control plane with running requests, whose pool's free blocks still hold prefixes of earlier ones."""
    longest = PROMPT_LENGTHS[1] + num_steps + 2
    num_blocks = num_running * -(-longest // BLOCK_SIZE) * 5 // 4
    plane = _control_plane(num_running, num_blocks, num_running * PROMPT_LENGTHS[1], longest + BLOCK_SIZE)
    draw = random.Random(seed)

    def add(name: str) -> None:
        prompt = draw.choices(range(VOCAB_SIZE), k=draw.randint(*PROMPT_LENGTHS))
        plane.engine.add_request(_request(name, prompt, ENDLESS))

    for generation in ("earlier", "running"):
        names = [f"{generation}-{index}" for index in range(num_running)]
        for name in names:
            add(name)
        if generation == "earlier":
            for _ in range(num_steps):
                plane.step()
            for name in names:
                plane.engine.abort(name)
    plane.step()
    for index in range(num_queued):
        add(f"queued-{index}")
    return plane


def measure_additions(prompt_len: int, num_additions: int, seed: int) -> AdditionTimes:
    """Time `add_request` for requests that then wait."""
    plane = _control_plane(1, -(-2 * prompt_len // BLOCK_SIZE), 64, 2 * prompt_len)
    prompt = random.Random(seed).choices(range(VOCAB_SIZE), k=prompt_len)
    seconds = []
    for index in range(num_additions):
        request = _request(f"request-{index}", list(prompt), 16)
        started = time.perf_counter()
        plane.engine.add_request(request)
        seconds.append(time.perf_counter() - started)
    return AdditionTimes(prompt_tokens=prompt_len, median_us=_median_us(seconds), p95_us=_p95_us(seconds))


def measure_churn(num_requests: int, on_progress: Callable[[int], None]) -> Churn:
    """Send short requests through the engine, always as many at once, and look at the process's memory."""
    engine = _control_plane(CHURN_SEQS, 4 * CHURN_SEQS, 32 * CHURN_SEQS, 4 * BLOCK_SIZE).engine
    draw = random.Random(0)
    names = (f"request-{index}" for index in range(num_requests))
    rss = psutil.Process().memory_info
    num_ended, rss_before = 0, rss().rss
    started = time.perf_counter()
    _send(engine, names, draw, 2 * CHURN_SEQS)
    while engine.has_unfinished_requests:
        num_ended_now = sum(delta.finish_reason is not None for delta in engine.step())
        engine.take_block_events()
        if num_ended < num_requests // 10 <= num_ended + num_ended_now:
            rss_before = rss().rss
        num_ended += num_ended_now
        _send(engine, names, draw, num_ended_now)
        on_progress(num_ended)
    seconds = time.perf_counter() - started
    return Churn(
        num_requests=num_ended,
        us_per_request=round(1e6 * seconds / num_ended, 1),
        rss_before_bytes=rss_before,
        rss_after_bytes=rss().rss,
    )


def _send(engine: Engine, names: Iterator[str], draw: random.Random, count: int) -> None:
    for _, name in zip(range(count), names, strict=False):
        prompt = draw.choices(range(VOCAB_SIZE), k=CHURN_PROMPT_LEN)
        engine.add_request(_request(name, prompt, CHURN_OUTPUT_LEN, draw.choice((None, 600.0))))


def _request(
    name: str, prompt_token_ids: list[int], max_tokens: int, timeout_s: float | None = None
) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_token_ids=prompt_token_ids,
        sampling_params=SamplingParams(max_tokens=max_tokens),
        timeout_s=timeout_s,
    )


def _control_plane(num_seqs: int, num_blocks: int, budget: int, max_model_len: int) -> _ControlPlane:
    scheduler = Scheduler(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        block_manager=BlockManager(num_blocks, BLOCK_SIZE),
        eos_token_ids=EOS_TOKEN_IDS,
    )
    description = ModelDescription(
        name="none",
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        created=0,
        kv_blocks_total=num_blocks,
        block_size=BLOCK_SIZE,
        eos_token_ids=EOS_TOKEN_IDS,
    )
    engine = Engine(description=description, scheduler=scheduler, executor=FixedTokenExecutor())
    return _ControlPlane(engine, scheduler)


def _median_us(seconds: Sequence[float]) -> float:
    return round(1e6 * statistics.median(seconds), 1)


def _p95_us(seconds: Sequence[float]) -> float:
    return round(1e6 * statistics.quantiles(seconds, n=20, method="inclusive")[-1], 1)
