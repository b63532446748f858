"""Overhead of tensor and pipeline parallelism: plan broadcast, all-reduce, and waits between ranks."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rayinfer.benchmark.control_plane.fixed_token_executor import FixedTokenExecutor
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.distributed.group_executor import GroupExecutor
from rayinfer.engine.distributed.rank_worker import RankWorker
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rendezvous import Rendezvous, RendezvousHost
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.tensor_parallel import RankCoordinates

STEP_REQUESTS = (1, 64, 256)  # of a step whose control plane is measured, each with one token
CONTEXT_BLOCKS = 64  # of each of them
PROMPT_TOKENS = 32
WARM_UP_STEPS = 5
_ECHO = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from rayinfer.benchmark.control_plane.parallel import echo_plans; echo_plans()"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlTimes:
    """Microseconds from plan to tokens between two processes that compute nothing."""

    num_requests: int
    median_us: float
    p95_us: float
    num_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """Decoding steps over some ranks."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    tokens_per_s: float
    step_ms: float  # from one step's tokens to the next one's
    communication_share: float  # of rank 0's time: sums, and waiting for the other ranks of its stage
    stage_idle_shares: list[float]  # empty for one stage


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelReport:
    """Result of the benchmark of parallelism."""

    model: str
    batch: int
    control: list[ControlTimes]
    ranks: list[RankTimes]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return control plane and decoding."""
        control = [(each.num_requests, each.median_us, each.p95_us) for each in self.control]
        ranks = [
            (
                f"{each.tensor_parallel_size} x {each.pipeline_parallel_size}",
                each.tokens_per_s,
                each.step_ms,
                f"{each.communication_share:.0%}",
                ", ".join(f"{share:.0%}" for share in each.stage_idle_shares) or None,
            )
            for each in self.ranks
        ]
        return [
            Table("from a plan to its tokens, without a model", ("requests", "median µs", "p95 µs"), control),
            Table(
                f"{self.model}, decoding",
                ("TP x PP", "tokens/s", "ms a step", "communication", "idle, by stage"),
                ranks,
            ),
        ]


def run_parallel_benchmark(
    model: str, folder: Path, sizes: Sequence[tuple[int, int]], *, batch: int, num_steps: int, **settings: Any
) -> ParallelReport:
    """Measure the control plane, and decoding at each of these (tensor, pipeline) sizes."""
    with _two_ranks_without_a_model() as executor:
        control = [_control_times(executor, count, num_steps) for count in STEP_REQUESTS]
    ranks = [_rank_times(model, folder, size, batch, num_steps, settings) for size in sizes]
    return ParallelReport(model=model, batch=batch, control=control, ranks=ranks)


def echo_plans() -> None:
    """Run rank 1 of two ranks that compute nothing."""
    rendezvous = Rendezvous(*json.loads(sys.stdin.readline()))
    group = RankGroup.join(RankCoordinates(1, 1, 2), rendezvous)
    RankWorker(group, FixedTokenExecutor(), None).serve()
    group.close()


@contextmanager
def _two_ranks_without_a_model() -> Iterator[GroupExecutor]:
    host = RendezvousHost()
    process = subprocess.Popen([sys.executable, "-c", _ECHO, *sys.path], stdin=subprocess.PIPE, text=True)
    try:
        rendezvous = host.rendezvous
        assert process.stdin is not None
        arguments = [rendezvous.host, rendezvous.port, rendezvous.key, rendezvous.timeout_s]
        process.stdin.write(json.dumps(arguments) + "\n")
        process.stdin.flush()
        # Two stages: every plan is sent to the second stage, which returns the tokens.
        executor = GroupExecutor(RankGroup.host(RankCoordinates(0, 1, 2), host), FixedTokenExecutor())
        yield executor
        executor.shutdown()
    finally:
        process.kill()
        process.wait()
        host.close()


def _control_times(executor: GroupExecutor, num_requests: int, num_steps: int) -> ControlTimes:
    plan = StepPlan(
        step=1,
        rows=np.arange(num_requests),
        token_ids=np.ones(num_requests, np.int32),
        positions=np.arange(num_requests),
        slot_mapping=np.arange(num_requests),
        cu_seqlens_q=np.arange(num_requests + 1, dtype=np.int32),
        seq_lens=np.full(num_requests, 16 * CONTEXT_BLOCKS, np.int32),
        block_tables=np.zeros((num_requests, CONTEXT_BLOCKS), np.int32),
        samples=np.ones(num_requests, np.bool_),
    )
    seconds = []
    for _ in range(num_steps + WARM_UP_STEPS):
        started = time.perf_counter()
        executor.submit(plan).result()
        seconds.append(time.perf_counter() - started)
    in_us = [1e6 * each for each in seconds[WARM_UP_STEPS:]]
    return ControlTimes(
        num_requests=num_requests,
        median_us=statistics.median(in_us),
        p95_us=float(np.percentile(in_us, 95)),
        num_steps=num_steps,
    )


def _rank_times(
    model: str, folder: Path, size: tuple[int, int], batch: int, num_steps: int, settings: dict[str, Any]
) -> RankTimes:
    tensor, pipeline = size
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    engine = build_engine(engine_config(**{**settings, "model": model, **sizes}), folder)
    try:
        executor = engine.executor
        _fill(engine, batch, num_steps + WARM_UP_STEPS)
        while engine.stats.generation_tokens_total < batch * WARM_UP_STEPS:
            engine.step()
        communication_s = executor.communication_s if isinstance(executor, GroupExecutor) else 0.0
        num_tokens, started = 0, time.perf_counter()
        while engine.has_unfinished_requests:
            num_tokens += sum(len(delta.token_ids) for delta in engine.step())
        elapsed_s = time.perf_counter() - started
        if isinstance(executor, GroupExecutor):
            communication_s = executor.communication_s - communication_s
        return RankTimes(
            **sizes,
            tokens_per_s=num_tokens / elapsed_s,
            step_ms=1000 * elapsed_s * batch / num_tokens,
            communication_share=communication_s / elapsed_s,
            stage_idle_shares=list(executor.stage_idle_shares),
        )
    finally:
        engine.exit()


def _fill(engine: Engine, batch: int, num_tokens: int) -> None:
    vocab_size = engine.description.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    for number in range(batch):
        prompt = [(7 * number + 11 * position) % vocab_size for position in range(PROMPT_TOKENS)]
        engine.add_request(GenerationRequest(request_id=f"{number}", prompt_token_ids=prompt, sampling_params=params))
