"""Sizes of the workloads: full, a part for a quick run, or tiny for any machine."""

from dataclasses import dataclass, field, replace

from rayinfer.benchmark.gpu.decode_kernel import DecodeSweep
from rayinfer.benchmark.gpu.skinny_gemm import ALL_PRODUCTS, ProductSweep

PROFILED_STEPS = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Numbers of requests, tokens, seconds and runs."""

    num_requests: int = 256
    longest: int = 1024
    stream_lengths: tuple[int, int] = (600, 256)
    prompts: tuple[int, int] = (128, 1024)
    step_tokens: int = 16_384
    long_prompt: int = 8192
    chunks: tuple[int, ...] = (2048, 512, 8192)  # tokens of a step, where long prompts come in between
    interference_s: float = 10.0
    max_num_seqs: int = 256
    num_runs: int = 3
    gap_steps: int = PROFILED_STEPS
    kernel: DecodeSweep = field(default_factory=DecodeSweep)
    products: ProductSweep = ALL_PRODUCTS
    is_tiny: bool = False
    limit_s: float = 480.0  # for everything together


FULL = Scale()
QUICK = replace(
    FULL, num_runs=1, kernel=DecodeSweep(groups=(2, 8), contexts=(1024, 4096), batches=(1, 32, 256)), limit_s=120.0
)
TINY = Scale(
    num_requests=4,
    longest=12,
    stream_lengths=(20, 6),
    prompts=(4, 24),
    step_tokens=64,
    long_prompt=48,
    chunks=(16,),
    interference_s=0.3,
    max_num_seqs=8,
    num_runs=1,
    gap_steps=4,
    kernel=DecodeSweep(
        groups=(2,), contexts=(24,), batches=(1, 2), num_kv_heads=1, head_dim=64, cold_bytes=1 << 10, num_repeats=1
    ),
    products=ProductSweep(matrices=[(40, 24)], rows=(1, 2), cold_bytes=1 << 10, num_repeats=1),
    is_tiny=True,
)
