"""Measures each workload: opens the engine that it needs, runs it, and sets its floor beside it."""

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from rayinfer.benchmark.gpu import engine_runs
from rayinfer.benchmark.gpu.decode_kernel import DecodeSweep, measure_decode_kernel
from rayinfer.benchmark.gpu.floors import FP8_BYTES, CardLimits, Floor
from rayinfer.benchmark.gpu.model_shapes import FLOAT_BYTES, SHAPES, model_size, tiny_shape, write_shape
from rayinfer.benchmark.gpu.results import KernelRow, Row
from rayinfer.benchmark.gpu.step_gaps import PROFILED_STEPS, profile_steps, step_gap_us
from rayinfer.benchmark.gpu.works import Work, even_workload, nano_workload
from rayinfer.engine.engine import Engine
from rayinfer_kernels.gpu.language import IS_INTERPRETED

CHUNKS = (512, 2048, 8192)  # tokens of a step, where long prompts come in between
GAP_BATCH = 64  # requests that decode while the GPU's pauses are measured


LARGE_READ_BYTES = 64 << 20
TINY_SWEEP = DecodeSweep(
    groups=(2,),
    contexts=(24,),
    batches=(1, 2),
    num_kv_heads=1,
    head_dim=64,
    cold_bytes=1 << 10,
    num_repeats=1,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much of each workload is run."""

    num_requests: int = 256
    longest: int = 1024
    stream_lengths: tuple[int, int] = (600, 256)
    prompts: tuple[int, int] = (128, 1024)
    step_tokens: int = 16_384
    long_prompt: int = 8192
    interference_s: float = 10.0
    max_num_seqs: int = 256
    num_runs: int = 3
    gap_steps: int = PROFILED_STEPS
    kernel: DecodeSweep = field(default_factory=DecodeSweep)
    is_tiny: bool = False


FULL = Scale()
QUICK = replace(FULL, num_runs=1, kernel=DecodeSweep(groups=(2, 8), contexts=(1024, 4096), batches=(1, 32, 256)))
TINY = Scale(
    num_requests=4,
    longest=12,
    stream_lengths=(20, 6),
    prompts=(4, 24),
    step_tokens=64,
    long_prompt=48,
    interference_s=0.3,
    max_num_seqs=8,
    num_runs=1,
    gap_steps=4,
    kernel=TINY_SWEEP,
    is_tiny=True,
)


class Measuring:
    """Fills rows in; `folder` keeps the shapes of models."""

    def __init__(self, limits: CardLimits, scale: Scale, folder: Path, device: torch.device) -> None:
        self._limits, self._scale, self._folder, self._device = limits, scale, folder, device

    def measure(self, work: Work, row: Row) -> None:
        """Run a workload that needs an engine."""
        runs: dict[str, Callable[[Work, Row], None]] = {
            "offline": self._offline,
            "stream": self._stream,
            "prefill": self._prefill,
            "interference": self._interference,
        }
        runs[work.kind](work, row)

    def measure_kernel(self, row: Row, kernels: list[KernelRow]) -> None:
        """Run the decode kernel on many shapes; the median of those counts that read enough to fill the card."""
        if self._device.type == "cpu" and not IS_INTERPRETED:
            row.rate = "no GPU, and no interpreter of Triton's (TRITON_INTERPRET=1)"
            return
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            sweep = replace(self._scale.kernel, cache_dtype=dtype)
            shapes = measure_decode_kernel(self._device, sweep, self._limits.copy_bytes_per_s)
            kernels += [KernelRow(kv_dtype=str(dtype).removeprefix("torch."), shape=shape) for shape in shapes]
        large = [
            each.shape
            for each in kernels
            if self._scale.is_tiny or (each.kv_dtype == "bfloat16" and each.shape.num_bytes >= LARGE_READ_BYTES)
        ]
        shares = [shape.share_of_copy for shape in large]
        row.seconds = [shape.seconds for shape in large]
        row.share = statistics.median(shares)
        row.rate = f"of a copy's bandwidth: median {row.share:.0%}, {min(shares):.0%} to {max(shares):.0%}"

    def _offline(self, work: Work, row: Row) -> None:
        scale = self._scale
        workload = nano_workload(scale.num_requests, scale.longest)
        with self._engine(work) as engine:
            requests = engine_runs.warm_up(engine)
            row.seconds = [engine_runs.offline_seconds(engine, requests, workload) for _ in range(scale.num_runs)]
            row.idle_us = self._step_gap_us(engine, requests)
        lengths = [len(prompt) for prompt in workload.prompts]
        self._set_beside(row, self._floor(work).offline_s(lengths, workload.output_lengths))
        row.rate = f"{workload.num_output_tokens / statistics.median(row.seconds):,.0f} output tokens/s"

    def _stream(self, work: Work, row: Row) -> None:
        prompt_len, output_len = self._scale.stream_lengths
        with self._engine(work, max_num_seqs=min(8, self._scale.max_num_seqs)) as engine:
            requests = engine_runs.warm_up(engine)
            for seed in range(self._scale.num_runs):
                gaps = engine_runs.token_seconds(engine, requests, even_workload(1, prompt_len, output_len, seed))
                row.seconds.append(statistics.median(gaps))
        self._set_beside(row, self._floor(work).decode_step_s([prompt_len + output_len // 2]))
        token_s = statistics.median(row.seconds)
        row.rate = f"{1e3 * token_s:.3f} ms a token, {1 / token_s:,.0f} tokens/s"

    def _prefill(self, work: Work, row: Row) -> None:
        num_prompts, length = self._scale.prompts
        with self._engine(work) as engine:
            requests = engine_runs.warm_up(engine)
            for seed in range(self._scale.num_runs):
                workload = even_workload(num_prompts, length, 1, seed)
                row.seconds.append(engine_runs.offline_seconds(engine, requests, workload))
        self._set_beside(row, self._floor(work).prefill_s([length] * num_prompts))
        row.rate = f"{num_prompts * length / statistics.median(row.seconds):,.0f} prompt tokens/s"

    def _interference(self, work: Work, row: Row) -> None:
        scale, parts = self._scale, []
        for chunk in CHUNKS if not scale.is_tiny else (16,):
            with self._engine(work, max_num_batched_tokens=chunk) as engine:
                gaps = engine_runs.interference_seconds(
                    engine,
                    engine_runs.warm_up(engine),
                    num_streams=min(32, scale.max_num_seqs // 2),
                    prompt_len=scale.long_prompt,
                    every_s=min(2.0, scale.interference_s / 3),
                    for_s=scale.interference_s,
                )
            row.seconds.append(statistics.median(gaps))
            p99_ms, p999_ms = (1e3 * sorted(gaps)[int(share * (len(gaps) - 1))] for share in (0.99, 0.999))
            parts.append(
                f"steps of {chunk}: p50 {1e3 * row.seconds[-1]:.1f}, p99 {p99_ms:.1f}, p99.9 {p999_ms:.1f}, "
                f"longest {1e3 * max(gaps):.1f} ms"
            )
        row.rate = "; ".join(parts)

    def _step_gap_us(self, engine: Engine, requests: engine_runs.Requests) -> float | None:
        num_steps = self._scale.gap_steps
        batch = min(GAP_BATCH, self._scale.max_num_seqs)
        requests.add(even_workload(batch, 16, 3 * num_steps))
        while engine.stats.num_running < batch:
            engine.step()
        for _ in range(num_steps // 2):
            engine.step()
        gap_us = step_gap_us(profile_steps(engine, num_steps), num_steps)
        engine_runs.drain(engine)
        return gap_us

    def _engine(self, work: Work, **settings: object) -> AbstractContextManager[Engine]:
        scale = self._scale
        shape = tiny_shape(work.model) if scale.is_tiny else SHAPES[work.model]
        memory = {"num_kv_blocks": 256} if scale.is_tiny else {}
        usual = {
            "max_num_seqs": scale.max_num_seqs,
            "max_num_batched_tokens": scale.step_tokens,
            "max_model_len": 512 if scale.is_tiny else 16_384,
            "kv_cache_dtype": work.kv_cache_dtype if self._device.type == "cuda" else "auto",
            "allow_inaccurate_quantization": work.kv_cache_dtype != "auto",
        }
        folder = write_shape(shape, self._folder / work.model)
        return engine_runs.open_engine(folder, **{**usual, **memory, **settings})

    def _floor(self, work: Work) -> Floor:
        shape = tiny_shape(work.model) if self._scale.is_tiny else SHAPES[work.model]
        kv_bytes = FP8_BYTES if work.kv_cache_dtype == "fp8" else FLOAT_BYTES
        return Floor(limits=self._limits, size=model_size(shape), kv_bytes=kv_bytes)

    @staticmethod
    def _set_beside(row: Row, floor_s: float) -> None:
        row.floor_s = floor_s
        row.share = floor_s / statistics.median(row.seconds)
