"""Measurement of each workload: opens its engine, runs it, and adds its roofline time."""

import random
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from rayinfer.benchmark.gpu import engine_runs
from rayinfer.benchmark.gpu.cases import Work, even_workload, nano_workload
from rayinfer.benchmark.gpu.decode_kernel import decode_shapes, measure_decode_kernel
from rayinfer.benchmark.gpu.estimates import floor_of, shape_of
from rayinfer.benchmark.gpu.model_shapes import write_shape
from rayinfer.benchmark.gpu.results import KernelRow, Row
from rayinfer.benchmark.gpu.roofline import CardLimits
from rayinfer.benchmark.gpu.scales import Scale
from rayinfer.benchmark.gpu.skinny_gemm import ProductRow, measure_product, product_shapes
from rayinfer.benchmark.gpu.step_gaps import profile_steps, step_gap_us
from rayinfer.benchmark.gpu.time_budget import WorkTime
from rayinfer.engine.loop.engine import Engine
from rayinfer_kernels.gpu.language import IS_INTERPRETED

GAP_BATCH = 64  # requests that decode while the GPU's pauses are measured
LARGE_READ_BYTES = 64 << 20
_Shape = TypeVar("_Shape")
KV_DTYPES = (torch.bfloat16, torch.float8_e4m3fn)


class Measuring:
    """Measurement of rows; `folder` keeps the shapes of models."""

    def __init__(self, limits: CardLimits, scale: Scale, folder: Path, device: torch.device) -> None:
        self._limits, self._scale, self._folder, self._device = limits, scale, folder, device

    def measure(self, work: Work, row: Row, work_time: WorkTime) -> None:
        """Run a workload that needs an engine, as often as there is time for; raises OutOfTime."""
        runs: dict[str, Callable[[Work, Row, WorkTime], None]] = {
            "offline": self._offline,
            "stream": self._stream,
            "prefill": self._prefill,
            "interference": self._interference,
        }
        runs[work.kind](work, row, work_time)

    def measure_kernel(self, row: Row, kernels: list[KernelRow], work_time: WorkTime) -> None:
        """Run the decode kernel on many shapes; the median of those counts that read enough to fill the card.

        Each type's shapes come in an order that was drawn once, so that those which fit into the time have all kinds.
        """
        if not self._runs_kernels(row):
            return
        sweeps = [replace(self._scale.kernel, cache_dtype=dtype) for dtype in KV_DTYPES]
        pairs = [(sweep, shape) for sweep in sweeps for shape in _in_drawn_order(decode_shapes(sweep))]
        for number in work_time.runs():
            sweep, shape = pairs[number]
            measured = measure_decode_kernel(self._device, sweep, shape, self._limits.copy_bytes_per_s)
            kernels.append(KernelRow(kv_dtype=str(sweep.cache_dtype).removeprefix("torch."), shape=measured))
        kernels.sort(key=lambda kernel: (kernel.kv_dtype, kernel.shape.group, kernel.shape.context, kernel.shape.batch))
        self._summarize(row, kernels)

    def measure_products(self, row: Row, products: list[ProductRow], work_time: WorkTime) -> None:
        """Run products of few rows, ours and torch's, in an order that was drawn once."""
        if not self._runs_kernels(row):
            return
        sweep, copied = self._scale.products, self._limits.copy_bytes_per_s
        shapes = _in_drawn_order(product_shapes(sweep))
        for number in work_time.runs():
            products.append(measure_product(self._device, sweep, shapes[number], copied))
        products.sort(key=lambda product: (product.num_rows, product.inputs, product.outputs))
        row.seconds = [product.seconds for product in products]
        row.share, torchs = (
            statistics.median(shares)
            for shares in zip(*((each.share_of_copy, each.torch_share_of_copy) for each in products), strict=True)
        )
        row.rate = f"of a copy's bandwidth: median {row.share:.0%}, torch's products {torchs:.0%}"

    def _runs_kernels(self, row: Row) -> bool:
        if self._device.type == "cpu" and not IS_INTERPRETED:
            row.rate = "no GPU, and no interpreter of Triton's (TRITON_INTERPRET=1)"
            return False
        return True

    def _summarize(self, row: Row, kernels: list[KernelRow]) -> None:
        large = [
            each.shape
            for each in kernels
            if self._scale.is_tiny or (each.kv_dtype == "bfloat16" and each.shape.num_bytes >= LARGE_READ_BYTES)
        ]
        if not large:
            raise RuntimeError("no shape was measured that reads enough to fill the card")
        shares = [shape.share_of_copy for shape in large]
        row.seconds = [shape.seconds for shape in large]
        row.share = statistics.median(shares)
        row.rate = f"of a copy's bandwidth: median {row.share:.0%}, {min(shares):.0%} to {max(shares):.0%}"

    def _offline(self, work: Work, row: Row, work_time: WorkTime) -> None:
        scale = self._scale
        workload = nano_workload(scale.num_requests, scale.longest)
        lengths = [len(prompt) for prompt in workload.prompts]
        with self._engine(work) as engine:
            loaded = engine_runs.warm_up(engine, work_time.deadline)
            row.seconds = [engine_runs.offline_seconds(loaded, workload) for _ in work_time.runs()]
            row.idle_us = self._step_gap_us(loaded)
        floor = floor_of(work, scale, self._limits)
        self._set_beside(row, floor.offline_s(lengths, workload.output_lengths))
        row.rate = f"{workload.num_output_tokens / statistics.median(row.seconds):,.0f} output tokens/s"

    def _stream(self, work: Work, row: Row, work_time: WorkTime) -> None:
        prompt_len, output_len = self._scale.stream_lengths
        with self._engine(work, max_num_seqs=min(8, self._scale.max_num_seqs)) as engine:
            loaded = engine_runs.warm_up(engine, work_time.deadline)
            for seed in work_time.runs():
                gaps = engine_runs.token_seconds(loaded, even_workload(1, prompt_len, output_len, seed))
                row.seconds.append(statistics.median(gaps))
        floor = floor_of(work, self._scale, self._limits)
        self._set_beside(row, floor.decode_step_s([prompt_len + output_len // 2]))
        token_s = statistics.median(row.seconds)
        row.rate = f"{1e3 * token_s:.3f} ms a token, {1 / token_s:,.0f} tokens/s"

    def _prefill(self, work: Work, row: Row, work_time: WorkTime) -> None:
        num_prompts, length = self._scale.prompts
        with self._engine(work) as engine:
            loaded = engine_runs.warm_up(engine, work_time.deadline)
            for seed in work_time.runs():
                workload = even_workload(num_prompts, length, 1, seed)
                row.seconds.append(engine_runs.offline_seconds(loaded, workload))
        floor = floor_of(work, self._scale, self._limits)
        self._set_beside(row, floor.prefill_s([length] * num_prompts))
        row.rate = f"{num_prompts * length / statistics.median(row.seconds):,.0f} prompt tokens/s"

    def _interference(self, work: Work, row: Row, work_time: WorkTime) -> None:
        scale, parts = self._scale, []
        for number in work_time.runs():
            chunk = scale.chunks[number]
            with self._engine(work, max_num_batched_tokens=chunk) as engine:
                gaps = engine_runs.interference_seconds(
                    engine_runs.warm_up(engine, work_time.deadline),
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

    def _step_gap_us(self, loaded: engine_runs.LoadedEngine) -> float | None:
        num_steps = self._scale.gap_steps
        batch = min(GAP_BATCH, self._scale.max_num_seqs)
        loaded.add(even_workload(batch, 16, 3 * num_steps))
        while loaded.engine.stats.num_running < batch:
            loaded.step()
        for _ in range(num_steps // 2):
            loaded.step()
        gap_us = step_gap_us(profile_steps(loaded.engine, num_steps), num_steps)
        loaded.drain()
        return gap_us

    def _engine(self, work: Work, **settings: object) -> AbstractContextManager[Engine]:
        scale = self._scale
        memory = {"num_kv_blocks": 256} if scale.is_tiny else {}
        usual = {
            "max_num_seqs": scale.max_num_seqs,
            "max_num_batched_tokens": scale.step_tokens,
            "max_model_len": 512 if scale.is_tiny else 16_384,
            "kv_cache_dtype": work.kv_cache_dtype if self._device.type == "cuda" else "auto",
            "allow_inaccurate_quantization": work.kv_cache_dtype != "auto",
        }
        folder = write_shape(shape_of(work, scale), self._folder / work.model)
        return engine_runs.open_engine(folder, **{**usual, **memory, **settings})

    @staticmethod
    def _set_beside(row: Row, floor_s: float) -> None:
        row.floor_s = floor_s
        row.share = floor_s / statistics.median(row.seconds)


def _in_drawn_order(shapes: list[_Shape]) -> list[_Shape]:
    return random.Random(0).sample(shapes, len(shapes))
