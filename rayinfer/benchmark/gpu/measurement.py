"""Measurement of each case: opens its engine, runs it, and adds its roofline time."""

import random
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from rayinfer.benchmark.gpu import engine_runs
from rayinfer.benchmark.gpu.cases import Case, Scale, even_workload, nano_workload
from rayinfer.benchmark.gpu.deadline import Deadline
from rayinfer.benchmark.gpu.decode_kernel import DecodeRow, decode_shapes, measure_decode_kernel
from rayinfer.benchmark.gpu.gpu_report import KernelRow, Row
from rayinfer.benchmark.gpu.model_shapes import write_shape
from rayinfer.benchmark.gpu.roofline import CardLimits, Roofline
from rayinfer.benchmark.gpu.skinny_gemm import ProductRow, measure_product, product_shapes
from rayinfer.benchmark.gpu.step_gaps import profile_steps, step_gap_us
from rayinfer.engine.loop.engine import Engine
from rayinfer_kernels.gpu.language import IS_INTERPRETED

GAP_BATCH = 64  # requests that decode while the GPU's pauses are measured
LARGE_READ_BYTES = 64 << 20  # fills the card
KV_DTYPES = (torch.bfloat16, torch.float8_e4m3fn)
NO_DEVICE = "no GPU, and no interpreter of Triton's (TRITON_INTERPRET=1)"
_Shape = TypeVar("_Shape")


class Measurement:
    """Measurement of cases on one device; `folder` keeps the shapes of models.

    Each method fills a row, and returns how many of the wanted runs were made before the deadline, where some are
    missing; else the empty string. The first run is always made.
    """

    def __init__(
        self, limits: CardLimits, scale: Scale, folder: Path, device: torch.device, deadline: Deadline
    ) -> None:
        self._limits, self._scale, self._folder = limits, scale, folder
        self._device, self._deadline = device, deadline

    def measure(self, case: Case, row: Row) -> str:
        """Run a case that needs an engine."""
        methods: dict[str, Callable[[Case, Row], int]] = {
            "offline": self._offline,
            "stream": self._stream,
            "prefill": self._prefill,
            "interference": self._interference,
        }
        wanted = methods[case.kind](case, row)
        return _shortfall(len(row.seconds), wanted, "runs")

    def measure_kernel(self, row: Row, kernels: list[KernelRow]) -> str:
        """Run the decode kernel on many shapes; the median of those counts that read enough to fill the card.

        The order of each type's shapes is random but fixed, so that those measured before the deadline have all kinds.
        """
        if not self._has_kernels(row):
            return ""
        sweeps = [replace(self._scale.kernel, cache_dtype=dtype) for dtype in KV_DTYPES]
        pairs = [(sweep, shape) for sweep in sweeps for shape in _shuffled(decode_shapes(sweep))]
        for number in self._deadline.runs(len(pairs)):
            sweep, shape = pairs[number]
            measured = measure_decode_kernel(self._device, sweep, shape, self._limits.copy_bytes_per_s)
            kernels.append(KernelRow(kv_dtype=str(sweep.cache_dtype).removeprefix("torch."), shape=measured))
        kernels.sort(key=lambda kernel: (kernel.kv_dtype, kernel.shape.group, kernel.shape.context, kernel.shape.batch))
        large = [each.shape for each in kernels if self._fills_the_card(each.kv_dtype, each.shape)]
        if not large:
            raise RuntimeError("no shape was measured that reads enough to fill the card")
        shares = [shape.share_of_copy for shape in large]
        row.seconds = [shape.seconds for shape in large]
        row.share = statistics.median(shares)
        row.rate = f"of a copy's bandwidth: median {row.share:.0%}, {min(shares):.0%} to {max(shares):.0%}"
        return _shortfall(len(kernels), len(pairs), "shapes")

    def measure_products(self, row: Row, products: list[ProductRow]) -> str:
        """Run skinny GEMMs, ours and torch's, in a random but fixed order."""
        if not self._has_kernels(row):
            return ""
        sweep, copied = self._scale.products, self._limits.copy_bytes_per_s
        shapes = _shuffled(product_shapes(sweep))
        for number in self._deadline.runs(len(shapes)):
            products.append(measure_product(self._device, sweep, shapes[number], copied))
        products.sort(key=lambda product: (product.num_rows, product.inputs, product.outputs))
        row.seconds = [product.seconds for product in products]
        row.share = statistics.median(each.share_of_copy for each in products)
        torch_share = statistics.median(each.torch_share_of_copy for each in products)
        row.rate = f"of a copy's bandwidth: median {row.share:.0%}, torch's products {torch_share:.0%}"
        return _shortfall(len(products), len(shapes), "shapes")

    def _has_kernels(self, row: Row) -> bool:
        if self._device.type == "cpu" and not IS_INTERPRETED:
            row.rate = NO_DEVICE
            return False
        return True

    def _fills_the_card(self, kv_dtype: str, shape: DecodeRow) -> bool:
        return self._scale.is_tiny or (kv_dtype == "bfloat16" and shape.num_bytes >= LARGE_READ_BYTES)

    def _offline(self, case: Case, row: Row) -> int:
        scale = self._scale
        workload = nano_workload(scale.num_requests, scale.longest)
        lengths = [len(prompt) for prompt in workload.prompts]
        with self._engine(case) as engine:
            loaded = engine_runs.warm_up(engine)
            for _ in self._deadline.runs(scale.num_runs):
                row.seconds.append(engine_runs.offline_seconds(loaded, workload))
            row.idle_us = self._step_gap_us(loaded)
        self._compare(case, row, lambda roofline: roofline.offline_s(lengths, workload.output_lengths))
        row.rate = f"{workload.num_output_tokens / statistics.median(row.seconds):,.0f} output tokens/s"
        return scale.num_runs

    def _stream(self, case: Case, row: Row) -> int:
        prompt_len, output_len = self._scale.stream_lengths
        with self._engine(case, max_num_seqs=min(8, self._scale.max_num_seqs)) as engine:
            loaded = engine_runs.warm_up(engine)
            for seed in self._deadline.runs(self._scale.num_runs):
                gaps = engine_runs.token_seconds(loaded, even_workload(1, prompt_len, output_len, seed))
                row.seconds.append(statistics.median(gaps))
        self._compare(case, row, lambda roofline: roofline.decode_step_s([prompt_len + output_len // 2]))
        token_s = statistics.median(row.seconds)
        row.rate = f"{1e3 * token_s:.3f} ms a token, {1 / token_s:,.0f} tokens/s"
        return self._scale.num_runs

    def _prefill(self, case: Case, row: Row) -> int:
        num_prompts, length = self._scale.prompts
        with self._engine(case) as engine:
            loaded = engine_runs.warm_up(engine)
            for seed in self._deadline.runs(self._scale.num_runs):
                workload = even_workload(num_prompts, length, 1, seed)
                row.seconds.append(engine_runs.offline_seconds(loaded, workload))
        self._compare(case, row, lambda roofline: roofline.prefill_s([length] * num_prompts))
        row.rate = f"{num_prompts * length / statistics.median(row.seconds):,.0f} prompt tokens/s"
        return self._scale.num_runs

    def _interference(self, case: Case, row: Row) -> int:
        scale, parts = self._scale, []
        for number in self._deadline.runs(len(scale.chunks)):
            chunk = scale.chunks[number]
            with self._engine(case, max_num_batched_tokens=chunk) as engine:
                gaps = engine_runs.interference_seconds(
                    engine_runs.warm_up(engine),
                    num_streams=min(32, scale.max_num_seqs // 2),
                    prompt_len=scale.long_prompt,
                    every_s=min(2.0, scale.interference_s / 3),
                    for_s=scale.interference_s,
                )
            row.seconds.append(statistics.median(gaps))
            p99_ms, p999_ms = (1e3 * sorted(gaps)[int(quantile * (len(gaps) - 1))] for quantile in (0.99, 0.999))
            parts.append(
                f"steps of {chunk}: p50 {1e3 * row.seconds[-1]:.1f}, p99 {p99_ms:.1f}, p99.9 {p999_ms:.1f}, "
                f"longest {1e3 * max(gaps):.1f} ms"
            )
        row.rate = "; ".join(parts)
        return len(scale.chunks)

    def _step_gap_us(self, loaded: engine_runs.LoadedEngine) -> float | None:
        num_steps = self._scale.gap_steps
        batch = min(GAP_BATCH, self._scale.max_num_seqs)
        loaded.add(even_workload(batch, 16, 3 * num_steps))
        while loaded.engine.stats.num_running < batch:
            loaded.engine.step()
        for _ in range(num_steps // 2):
            loaded.engine.step()
        gap_us = step_gap_us(profile_steps(loaded.engine, num_steps), num_steps)
        loaded.drain()
        return gap_us

    def _engine(self, case: Case, **settings: object) -> AbstractContextManager[Engine]:
        scale = self._scale
        defaults: dict[str, object] = {
            "max_num_seqs": scale.max_num_seqs,
            "max_num_batched_tokens": scale.step_tokens,
            "max_model_len": 512 if scale.is_tiny else 16_384,
            "kv_cache_dtype": case.kv_cache_dtype if self._device.type == "cuda" else "auto",
            "allow_inaccurate_quantization": case.kv_cache_dtype != "auto",
        }
        if scale.is_tiny:
            defaults["num_kv_blocks"] = 256
        folder = write_shape(scale.shape_of(case), self._folder / case.model)
        return engine_runs.open_engine(folder, **{**defaults, **settings})

    def _compare(self, case: Case, row: Row, roofline_s: Callable[[Roofline], float]) -> None:
        """Record the roofline time, and the fraction of it that was reached."""
        row.floor_s = roofline_s(Roofline.of(self._scale.shape_of(case), self._limits, case.kv_cache_dtype))
        row.share = row.floor_s / statistics.median(row.seconds)


def _shuffled(shapes: list[_Shape]) -> list[_Shape]:
    return random.Random(0).sample(shapes, len(shapes))


def _shortfall(made: int, wanted: int, unit: str) -> str:
    return "" if made == wanted else f"{made} of {wanted} {unit}"
