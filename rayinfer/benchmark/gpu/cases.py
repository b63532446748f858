"""Cases of the GPU benchmark: workloads, models, goals and sizes."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

from rayinfer.benchmark.gpu.decode_kernel import DecodeSweep
from rayinfer.benchmark.gpu.model_shapes import SHAPES, tiny_shape
from rayinfer.benchmark.gpu.skinny_gemm import ALL_PRODUCTS, ProductSweep
from rayinfer.benchmark.load.workloads import Workload

Kind = Literal["offline", "stream", "prefill", "interference", "kernel", "products"]
NANO_REQUESTS, NANO_LENGTHS, NANO_VOCABULARY, NANO_TEMPERATURE = 256, (100, 1024), 10_000, 0.6


@dataclass(frozen=True, slots=True)
class Case:
    """One workload on one model; `done` and `aim` are fractions of the roofline, or milliseconds for a token."""

    name: str
    kind: Kind
    model: str
    about: str
    done: float | None = None
    aim: float | None = None
    _: KW_ONLY
    goal_unit: Literal["of the roofline", "ms for a token", "times B1"] = "of the roofline"
    kv_cache_dtype: str = "auto"
    is_quick: bool = True  # part of the short run


# In the order of their importance: a run that is out of time omits the last ones.
CASES: Sequence[Case] = (
    Case("B1", "offline", "Qwen3-0.6B", "256 requests at once, 100 to 1,024 tokens in and out", 0.55, 0.80),
    Case("B3", "stream", "Qwen3-0.6B", "one stream, 600 tokens in, 256 out", 1.2, 0.8, goal_unit="ms for a token"),
    Case("B10", "kernel", "", "decode attention alone", 0.75, 0.88),
    Case("B4", "stream", "Qwen3-8B", "the stream of B3", 0.82, 0.90),
    Case("B7", "prefill", "Qwen3-8B", "128 prompts of 1,024 tokens in steps of 16,384", 0.65, 0.79),
    Case(
        "B1 fp8 KV",
        "offline",
        "Qwen3-0.6B",
        "the same as B1 with keys and values of eight bits",
        1.6,
        goal_unit="times B1",
        kv_cache_dtype="fp8",
    ),
    Case("B5", "stream", "Llama-3.2-1B", "the stream of B3", 1.1, 0.85, goal_unit="ms for a token", is_quick=False),
    Case("skinny GEMM", "products", "", "matrix products of one to four rows: ours and torch's", is_quick=False),
    Case(
        "B12",
        "interference",
        "Qwen3-0.6B",
        "32 streams, and prompts of 8,192 tokens that arrive in between",
        is_quick=False,
    ),
    Case("B2", "offline", "Qwen3-14B", "the requests of B1", 0.74, 0.85, is_quick=False),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Numbers of requests, tokens, seconds and runs."""

    num_requests: int = 256
    longest: int = 1024
    stream_lengths: tuple[int, int] = (600, 256)
    prompts: tuple[int, int] = (128, 1024)
    step_tokens: int = 16_384
    long_prompt: int = 8192
    chunks: tuple[int, ...] = (2048, 512, 8192)  # tokens of a step, where long prompts arrive in between
    interference_s: float = 10.0
    max_num_seqs: int = 256
    num_runs: int = 3
    gap_steps: int = 24  # profiled
    kernel: DecodeSweep = field(default_factory=DecodeSweep)
    products: ProductSweep = ALL_PRODUCTS
    is_tiny: bool = False
    limit_s: float = 480.0  # for everything together

    def shape_of(self, case: Case) -> Mapping[str, Any]:
        """Return the shape of a case's model."""
        return tiny_shape(case.model) if self.is_tiny else SHAPES[case.model]


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


def nano_workload(num_requests: int = NANO_REQUESTS, longest: int = NANO_LENGTHS[1]) -> Workload:
    """Return the requests of nano-vllm's bench.py, also mini-sglang's: 142,827 tokens in and 133,966 out, by default.

    The order of the draws is part of the definition.
    """
    draw, shortest = random.Random(0), min(NANO_LENGTHS[0], longest)
    prompts = [
        [draw.randint(0, NANO_VOCABULARY) for _ in range(draw.randint(shortest, longest))] for _ in range(num_requests)
    ]
    return Workload(prompts=prompts, output_lengths=[draw.randint(shortest, longest) for _ in range(num_requests)])


def even_workload(num_requests: int, input_len: int, output_len: int, seed: int = 0) -> Workload:
    """Draw requests of one length each, of random tokens."""
    draw = random.Random(seed)
    prompts = [[draw.randint(0, NANO_VOCABULARY) for _ in range(input_len)] for _ in range(num_requests)]
    return Workload(prompts=prompts, output_lengths=[output_len] * num_requests)
