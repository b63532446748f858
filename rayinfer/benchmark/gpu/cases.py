"""Workloads of the GPU benchmark, with their models and goals."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rayinfer.benchmark.load.workloads import Workload

Kind = Literal["offline", "stream", "prefill", "interference", "kernel", "products"]
NANO_REQUESTS, NANO_LENGTHS, NANO_VOCABULARY, NANO_TEMPERATURE = 256, (100, 1024), 10_000, 0.6


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One workload on one model; `done` and `aim` are shares of the floor, or milliseconds for a token."""

    name: str
    kind: Kind
    model: str
    about: str
    kv_cache_dtype: str = "auto"
    done: float | None = None
    aim: float | None = None
    goal_unit: Literal["of the floor", "ms for a token", "times B1"] = "of the floor"
    is_quick: bool = True  # also of the short run


# In the order of their importance: what does not fit into a run's time is left out from the end.
WORKS: Sequence[Work] = (
    Work(
        name="B1",
        kind="offline",
        model="Qwen3-0.6B",
        about="256 requests at once, 100 to 1,024 tokens in and out",
        done=0.55,
        aim=0.80,
    ),
    Work(
        name="B3",
        kind="stream",
        model="Qwen3-0.6B",
        about="one stream, 600 tokens in, 256 out",
        done=1.2,
        aim=0.8,
        goal_unit="ms for a token",
    ),
    Work(name="B10", kind="kernel", model="", about="attention of one token a request, alone", done=0.75, aim=0.88),
    Work(name="B4", kind="stream", model="Qwen3-8B", about="the stream of B3", done=0.82, aim=0.90),
    Work(
        name="B7",
        kind="prefill",
        model="Qwen3-8B",
        about="128 prompts of 1,024 tokens in steps of 16,384",
        done=0.65,
        aim=0.79,
    ),
    Work(
        name="B1 fp8 KV",
        kind="offline",
        model="Qwen3-0.6B",
        about="the same as B1 with keys and values of eight bits",
        kv_cache_dtype="fp8",
        done=1.6,
        goal_unit="times B1",
    ),
    Work(
        name="B5",
        kind="stream",
        model="Llama-3.2-1B",
        about="the stream of B3",
        done=1.1,
        aim=0.85,
        goal_unit="ms for a token",
        is_quick=False,
    ),
    Work(
        name="few rows",
        kind="products",
        model="",
        about="products of one to four rows, alone: ours and torch's",
        is_quick=False,
    ),
    Work(
        name="B12",
        kind="interference",
        model="Qwen3-0.6B",
        about="32 streams, and prompts of 8,192 tokens that come in between",
        is_quick=False,
    ),
    Work(
        name="B2",
        kind="offline",
        model="Qwen3-14B",
        about="the requests of B1",
        done=0.74,
        aim=0.85,
        is_quick=False,
    ),
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
