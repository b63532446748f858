"""Roofline times of workloads on a GPU: bytes over bandwidth, operations over their rate.

Matrix products read their weights or compute, whichever takes longer; attention then reads the cache. Nothing else
takes time. So these are lower bounds, not forecasts.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.benchmark.gpu.model_shapes import FLOAT_BYTES, ModelSize, model_size

FP8_BYTES = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CardLimits:
    """Measured peak rates of one GPU."""

    copy_bytes_per_s: float  # read and written together
    matmul_flops_per_s: float  # in bfloat16


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """Roofline times of one model on one card; `kv_bytes` and `weight_bytes` are those of one number."""

    limits: CardLimits
    size: ModelSize
    kv_bytes: int = FLOAT_BYTES
    weight_bytes: int = FLOAT_BYTES  # of the layers; the head stays in bfloat16

    @classmethod
    def of(cls, shape: Mapping[str, Any], limits: CardLimits, kv_cache_dtype: str = "auto") -> "Roofline":
        """Return the roofline of a model's shape with a cache of this type."""
        kv_bytes = FP8_BYTES if kv_cache_dtype == "fp8" else FLOAT_BYTES
        return cls(limits=limits, size=model_size(shape), kv_bytes=kv_bytes)

    def decode_step_s(self, contexts: Sequence[int]) -> float:
        """Return the time of one decoding step of requests with these numbers of cached tokens."""
        return self._decode_s(len(contexts), sum(contexts))

    def prefill_s(self, prompt_lengths: Sequence[int]) -> float:
        """Return the time to prefill these prompts, in steps so large that reading weights costs nothing."""
        size, num_tokens = self.size, sum(prompt_lengths)
        products = 2 * size.body_parameters * num_tokens / self._product_rate
        heads = 2 * size.head_parameters * len(prompt_lengths) / self.limits.matmul_flops_per_s
        pairs = sum(length * (length + 1) / 2 for length in prompt_lengths)
        attention = 4 * size.num_layers * size.num_heads * size.head_dim * pairs / self.limits.matmul_flops_per_s
        return products + heads + attention

    def offline_s(self, prompt_lengths: Sequence[int], output_lengths: Sequence[int]) -> float:
        """Return the time to prefill all prompts, then to decode until the longest output ends."""
        steps = decode_steps(prompt_lengths, output_lengths)
        return self.prefill_s(prompt_lengths) + sum(self._decode_s(batch, context) for batch, context in steps)

    def _decode_s(self, batch: int, context_tokens: int) -> float:
        size, limits = self.size, self.limits
        read = size.body_parameters * self.weight_bytes + size.head_parameters * FLOAT_BYTES
        body = 2 * batch * size.body_parameters / self._product_rate
        head = 2 * batch * size.head_parameters / limits.matmul_flops_per_s
        cache = context_tokens * size.kv_numbers_per_token * self.kv_bytes
        return max(read / limits.copy_bytes_per_s, body + head) + cache / limits.copy_bytes_per_s

    @property
    def _product_rate(self) -> float:
        return self.limits.matmul_flops_per_s * (2 if self.weight_bytes == FP8_BYTES else 1)


def decode_steps(prompt_lengths: Sequence[int], output_lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the batch size and the cached tokens of each decoding step; prefill yields the first token."""
    requests = sorted(zip(output_lengths, prompt_lengths, strict=True))
    lengths = [output for output, _ in requests]
    prompts_behind = [0]
    for _, prompt in reversed(requests):
        prompts_behind.append(prompts_behind[-1] + prompt)
    for step in range(1, max(lengths, default=0)):
        batch = len(lengths) - bisect.bisect_right(lengths, step)
        yield batch, prompts_behind[batch] + batch * step
