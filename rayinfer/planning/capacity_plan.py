"""Capacity plan: does a model fit, how fast is an engine, and how many are needed."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from rayinfer.benchmark.report import Table
from rayinfer.engine.worker.device_defaults import CPU as CPU_DEFAULTS
from rayinfer.engine.worker.device_defaults import CUDA as CUDA_DEFAULTS
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.pool_size import CPU_POOL_BYTES
from rayinfer.planning.hardware import Hardware
from rayinfer.planning.model_footprint import ModelFootprint
from rayinfer.planning.queueing import EngineLoad, Workload, engine_load, highest_rate
from rayinfer.planning.step_times import CPU, GPU, Efficiency, StepTimes

GIB = 2**30
CPU_MODES = ("int8", "int8-dynamic", "int4")
EIGHT_BIT_PRODUCTS = ("int8-dynamic", "int4", "fp8")
HEADROOM = 0.8  # of the highest rate: routers balance imperfectly, and requests differ
STEP_BYTES = 2 * GIB  # of a GPU: activations, logits, CUDA's own
HEADS = ("", "value", "basis")


@dataclass(frozen=True, kw_only=True, slots=True)
class Objectives:
    """Wanted service: requests a second, and the times that they may take."""

    rate: float
    ttft_s: float
    itl_s: float
    prompt_len: int  # tokens of images included
    output_len: int
    num_images: int = 0  # of a prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityPlan:
    """Figures of one model on one kind of device."""

    model: ModelFootprint
    hardware: Hardware
    objectives: Objectives
    times: StepTimes
    kv_tokens: int
    max_num_seqs: int  # that the cache and the settings allow of these requests
    prefill_s: float
    decode_step_s: float  # of one request alone
    full_step_s: float  # of max_num_seqs requests
    num_engines: int | None  # None where no number keeps the objectives
    highest: EngineLoad | None  # of one engine, within the objectives
    planned: EngineLoad | None  # of each engine at the wanted rate

    def as_json(self) -> dict[str, Any]:
        """Return all figures for scripts."""
        found = asdict(self)
        times = found.pop("times")  # it has model and hardware, too
        return found | {"efficiency": times["efficiency"]}

    def tables(self) -> list[Table]:
        """Return the figures with their bases: counted, measured or estimated."""
        return [self._memory(), self._times(), self._engines()]

    def _memory(self) -> Table:
        model, hardware = self.model, self.hardware
        devices = f"{hardware.num_devices} x {hardware.name}" if hardware.num_devices > 1 else hardware.name
        rows = [
            ("device", devices, hardware.basis),
            ("memory", f"{hardware.memory_bytes / GIB:.1f} GiB", "free now" if hardware.is_cpu else "data sheet"),
            ("weights", f"{model.weight_bytes / GIB:.2f} GiB", "counted"),
            *self._image_memory(),
            ("KV cache, a token", f"{model.kv_bytes_per_token / 1024:.1f} KiB", "counted"),
            ("KV cache, tokens that fit", f"{self.kv_tokens:,}", "counted, with the engine's default pool"),
            ("requests at once", f"{self.max_num_seqs:,}", "counted, of these lengths"),
        ]
        return Table("Memory of an engine", HEADS, rows)

    def _image_memory(self) -> list[tuple[str, str, str]]:
        images = self.model.images
        if images is None:
            return []
        basis = "counted, with its processor's defaults" if images.assumes_processor else "counted"
        size = f"{images.width} x {images.height} pixels"
        return [
            ("weights of the vision encoder", f"{images.weight_bytes / GIB:.2f} GiB", "counted, not quantized"),
            ("its largest image", f"{images.activation_bytes / GIB:.2f} GiB", f"{basis}: pixels and a layer's tensors"),
            (f"tokens of an image, {size}", f"{images.tokens_per_image:,}", basis),
            ("tokens of images, a request", f"{self.objectives.num_images * images.tokens_per_image:,}", "given"),
        ]

    def _times(self) -> Table:
        basis = f"estimated: roofline, shares {self.times.efficiency.source}"
        prompt = self.objectives.prompt_len
        rows = [
            ("read", f"{self.hardware.read_bytes_per_s / 1e9:,.0f} GB/s", self.hardware.basis),
            ("products", f"{self.hardware.operations_per_s / 1e12:,.2f} TFLOP/s", self.hardware.basis),
            *(self._encoding(basis)),
            (f"prefill of {prompt:,} tokens", _ms(self.prefill_s), basis),
            ("decoding step, 1 request", _ms(self.decode_step_s), basis),
            (f"decoding step, {self.max_num_seqs:,} requests", _ms(self.full_step_s), basis),
            (
                "output tokens/s, full batch",
                f"{self.max_num_seqs / self.full_step_s:,.0f}",
                basis + ", no prefill beside",
            ),
        ]
        return Table("Times of an engine", HEADS, rows)

    def _encoding(self, basis: str) -> list[tuple[str, str, str]]:
        images, times = self.model.images, self.times
        if images is None:
            return []
        seconds = images.operations_per_image / self.hardware.operations_per_s / times.efficiency.prefill
        return [("encoding of an image", _ms(seconds), f"{basis}; beside steps, not in TTFT")]

    def _engines(self) -> Table:
        wanted = self.objectives
        title = f"{wanted.rate:g} requests/s of {wanted.prompt_len:,} + {wanted.output_len:,} tokens"
        basis = "estimated: queueing"
        rows: list[tuple[str, str, str]] = [
            ("objectives", f"TTFT {_ms(wanted.ttft_s)} (p95), ITL {_ms(wanted.itl_s)} (mean)", "given"),
        ]
        if self.highest is None or self.planned is None or self.num_engines is None:
            alone = f"{_ms(self.prefill_s)} to its first token, {_ms(self.decode_step_s)} for each other"
            rows.append(("engines", f"none: one request alone takes {alone}", basis))
            return Table(title, HEADS, rows)
        rows += [
            ("most of one engine", f"{self.highest.requests_per_s:.2f} requests/s", basis),
            ("engines", f"{self.num_engines:,}", f"{basis}, at {HEADROOM:.0%} of that"),
            ("TTFT, mean and p95", f"{_ms(self.planned.ttft_mean_s)}, {_ms(self.planned.ttft_p95_s)}", basis),
            ("ITL, mean", _ms(self.planned.itl_s), basis),
            ("running requests of each", f"{self.planned.num_running:.1f}", basis),
            ("output tokens/s of all", f"{wanted.rate * wanted.output_len:,.0f}", "counted"),
        ]
        return Table(title, HEADS, rows)


def make_plan(
    model: ModelFootprint,
    hardware: Hardware,
    objectives: Objectives,
    *,
    quantization: str | None = None,
    efficiency: Efficiency | None = None,
) -> CapacityPlan:
    """Plan for a model; raises ConfigError where it does not fit or the settings contradict each other."""
    _check(model, hardware, objectives, quantization)
    efficiency = efficiency or (CPU if hardware.is_cpu else GPU)
    defaults = CPU_DEFAULTS if hardware.is_cpu else CUDA_DEFAULTS
    kv_tokens = _kv_tokens(model, hardware, defaults.memory_fraction)
    num_tokens = objectives.prompt_len + objectives.output_len
    max_num_seqs = min(defaults.max_num_seqs, kv_tokens // num_tokens)
    if max_num_seqs < 1:
        raise ConfigError(
            f"a request of {num_tokens:,} tokens does not fit: {hardware.name} leaves {max(0, kv_tokens):,} tokens of"
            f" KV cache beside {model.weight_bytes / GIB:.1f} GiB of weights; give more devices"
            " (--tensor-parallel-size), a quantization, or shorter requests"
        )
    times = StepTimes(
        model=model,
        hardware=hardware,
        efficiency=efficiency,
        has_eight_bit_products=quantization in EIGHT_BIT_PRODUCTS,
    )
    workload = Workload(
        prompt_len=objectives.prompt_len,
        output_len=objectives.output_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
    )
    highest = highest_rate(times, workload, max_num_seqs, objectives.ttft_s, objectives.itl_s)
    num_engines = None if highest is None else max(1, math.ceil(objectives.rate / highest.requests_per_s / HEADROOM))
    planned = None if num_engines is None else engine_load(times, workload, objectives.rate / num_engines, max_num_seqs)
    return CapacityPlan(
        model=model,
        hardware=hardware,
        objectives=objectives,
        times=times,
        kv_tokens=kv_tokens,
        max_num_seqs=max_num_seqs,
        prefill_s=times.prefill_s(objectives.prompt_len),
        decode_step_s=times.decode_step_s(1, workload.mean_context),
        full_step_s=times.decode_step_s(max_num_seqs, workload.mean_context),
        num_engines=num_engines,
        highest=highest,
        planned=planned,
    )


def _check(model: ModelFootprint, hardware: Hardware, objectives: Objectives, quantization: str | None) -> None:
    if quantization is not None and (quantization in CPU_MODES) != hardware.is_cpu:
        devices = "CPUs" if quantization in CPU_MODES else "GPUs"
        raise ConfigError(f"quantization {quantization!r} is for {devices}, not for {hardware.name}")
    if hardware.num_devices > model.num_heads:
        heads = f"{model.name} has {model.num_heads} attention heads"
        raise ConfigError(f"{heads}, too few for {hardware.num_devices} devices")
    num_tokens = objectives.prompt_len + objectives.output_len
    if num_tokens > model.longest_sequence:
        raise ConfigError(
            f"{objectives.prompt_len:,} + {objectives.output_len:,} tokens are more than the {model.longest_sequence:,}"
            f" that {model.name} has"
        )


def _kv_tokens(model: ModelFootprint, hardware: Hardware, memory_fraction: float | None) -> int:
    free = hardware.memory_bytes - model.weight_bytes
    if model.images is not None:
        free -= model.images.weight_bytes + model.images.activation_bytes
    if memory_fraction is None:
        return int(min(CPU_POOL_BYTES, free) / model.kv_bytes_per_token)
    return int((free - STEP_BYTES * hardware.num_devices) * memory_fraction / model.kv_bytes_per_token)


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
