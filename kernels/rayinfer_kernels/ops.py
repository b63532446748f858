"""Public interface of the kernels: every operation by name, run by the best implementation for its tensors."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F

from rayinfer_kernels.block_copy import copy_blocks
from rayinfer_kernels.encoder_stack import (
    EmbeddingWeights,
    EncoderLayerWeights,
    EncoderStack,
    EncoderStackShape,
    NormWeights,
    TokenRows,
)
from rayinfer_kernels.group_blocks import GroupedWeight, pack_groups
from rayinfer_kernels.implementation import ArgmaxResult, RowMasks, SampledRows
from rayinfer_kernels.int4_blocks import GROUP_SIZE
from rayinfer_kernels.kv_cache import KVCache, allocate_kv_cache, kv_block_bytes
from rayinfer_kernels.layer_stack import LayerStack, LayerWeights, OutputTokens, PackedLinear, StackShape
from rayinfer_kernels.low_rank import LowRank, LowRankPart, LowRankTable, TokenSlots, low_rank_part
from rayinfer_kernels.packed_weight import (
    FEW_PREFETCH_ROWS,
    LAYOUT_VERSION,
    GroupOffsets,
    PackedWeight,
    PrefetchDistances,
    WeightFormat,
)
from rayinfer_kernels.quantized_weight import (
    QuantizedWeight,
    pack_quantized,
    quantize,
    quantize_float8,
    unpack_quantized,
)
from rayinfer_kernels.reference.float8 import MIN_CAPABILITY
from rayinfer_kernels.reference.inverse_cdf import first_exceeding, padded_to_blocks, row_sums, to_weights_
from rayinfer_kernels.reference.quantized_rows import quantize_rows
from rayinfer_kernels.reference.sampling import kept_weights
from rayinfer_kernels.selection import ANY_TYPE, implementation_for, implementation_of

__all__ = [
    "FEW_PREFETCH_ROWS",
    "GROUP_SIZE",
    "LAYOUT_VERSION",
    "MIN_CAPABILITY",
    "ArgmaxResult",
    "EmbeddingWeights",
    "EncoderLayerWeights",
    "EncoderStack",
    "EncoderStackShape",
    "Gate",
    "GroupOffsets",
    "GroupedWeight",
    "KVCache",
    "LayerStack",
    "LayerWeights",
    "LowRank",
    "LowRankPart",
    "LowRankTable",
    "NormWeights",
    "OutputTokens",
    "PackedLinear",
    "PackedWeight",
    "PrefetchDistances",
    "QuantizedWeight",
    "RowMasks",
    "SampledRows",
    "StackShape",
    "TokenRows",
    "TokenSlots",
    "WeightFormat",
    "add_rms_norm",
    "allocate_kv_cache",
    "argmax",
    "copy_blocks",
    "embedding",
    "encoder_stack",
    "first_exceeding",
    "gated_linear",
    "gelu",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "grouped_gemm",
    "kept_weights",
    "kv_block_bytes",
    "layer_norm",
    "layer_stack",
    "linear",
    "low_rank_part",
    "mask_rows_",
    "moe_combine",
    "pack_groups",
    "pack_quantized",
    "pack_weight",
    "padded_to_blocks",
    "paged_attention",
    "quantize",
    "quantize_float8",
    "quantize_rows",
    "rms_norm",
    "rotary_embedding",
    "row_sums",
    "sample_rows",
    "silu_and_mul",
    "to_weights_",
    "uniform",
    "unpack_quantized",
    "write_kv",
]


Gate = Literal["silu", "gelu_tanh"]


def pack_weight(weight: torch.Tensor, is_gated: bool = False) -> PackedWeight | None:
    """Pack a weight into the GEMM kernels' layout; None: keep it.

    A weight [out_features, in_features] is for `linear`, or for `gated_linear` if it `is_gated`, [num_groups,
    out_features, in_features] for `grouped_gemm`.
    Its memory is reused where that can be, so that a packed weight is not to be used any more.
    Products with a packed weight are the same to the bit whatever else is in the batch.
    """
    return implementation_for(weight).pack(weight, is_gated)


def layer_stack(layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape) -> LayerStack | None:
    """Fuse all layers of a decoder and its last norm into one operation; None: run them one by one.

    On processors sums between the layers stay in float32, and results do not depend on the rest of the batch; on GPUs
    they are what the layers give one by one.
    """
    return implementation_for(last_norm).layer_stack(layers, last_norm, shape)


def encoder_stack(
    layers: Sequence[EncoderLayerWeights],
    shape: EncoderStackShape,
    position_bias: torch.Tensor | None = None,
    embeddings: EmbeddingWeights | None = None,
) -> EncoderStack | None:
    """Fuse all layers of an encoder into one operation; None where it needs packed weights and has others.

    position_bias [num_heads, 2 x max_distance + 1] in float32 is added to the scores by the distance from key to query,
    those beyond like the last. With `embeddings` it reads tokens as well. Sums between the layers stay in float32, and
    a text's results do not depend on the others.
    """
    return implementation_for(layers[0].attention_norm.weight).encoder_stack(layers, shape, position_bias, embeddings)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | PackedWeight,
    bias: torch.Tensor | None = None,
    low_rank: LowRank | None = None,
) -> torch.Tensor:
    """Compute x W^T + bias: x [num_tokens, in_features] -> [num_tokens, out_features].

    With `low_rank` rows that have an adapter get its term. By the compiled kernels it is added in float32 before the
    sum is rounded, and rows without one have the same bits as without it.
    """
    if isinstance(weight, PackedWeight):
        return implementation_for(x).packed_linear(x, weight, bias, low_rank)
    out = implementation_for(x).linear(x, weight, bias)
    return out if low_rank is None else implementation_for(x).add_low_rank_(out, x, low_rank)


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor | PackedWeight,
    bias: torch.Tensor | None,
    activation: Gate,
    low_rank: LowRank | None = None,
) -> torch.Tensor:
    """Return activation(gate) * up of x W^T + bias: x [num_tokens, in_features] -> [num_tokens, out_features].

    The rows of W are those of the gate, then as many of the other (Shazeer 2020). For `low_rank` see `linear`.
    """
    if isinstance(weight, PackedWeight):
        return implementation_for(x).packed_gated_linear(x, weight, bias, activation, low_rank)
    stacked = implementation_for(x).linear(x, weight, bias)
    if low_rank is not None:
        implementation_for(x).add_low_rank_(stacked, x, low_rank, is_gated=True)
    return silu_and_mul(stacked) if activation == "silu" else gelu_tanh_and_mul(stacked)


def grouped_gemm(x: torch.Tensor, weight: torch.Tensor | PackedWeight, group_starts: torch.Tensor) -> torch.Tensor:
    """Multiply each group of rows by its own weight: x [num_rows, in_features] -> [num_rows, out_features].

    Group i's rows are those from group_starts[i] to group_starts[i + 1], maybe none; weight [num_groups, out_features,
    in_features], group_starts [num_groups + 1] from 0 to num_rows.
    """
    if isinstance(weight, PackedWeight):
        return implementation_for(x).packed_grouped_gemm(x, weight, group_starts)
    return implementation_for(x).grouped_gemm(x, weight, group_starts)


def moe_combine(rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum rows[indices[t, i]] x weights[t, i] over i, in the order of i: rows [num_rows, width] -> [num_tokens, width].

    indices [num_tokens, num_choices]; weights of the same shape, in float32 as the sums are.
    """
    return implementation_for(rows).moe_combine(rows, indices, weights)


def embedding(
    indices: torch.Tensor, weight: torch.Tensor | PackedWeight, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Gather rows of `weight`, a quantized one's as `dtype`: indices [num_tokens] -> [num_tokens, in_features]."""
    if isinstance(weight, PackedWeight):
        dtype = dtype or weight.panels.dtype
        return implementation_of(weight.panels.device, dtype).packed_embedding(weight, indices, dtype)
    return F.embedding(indices, weight)


def argmax(rows: torch.Tensor) -> ArgmaxResult:
    """Compute the maximum of each of `rows` [num_rows, width] and its first index, on the same device.

    The value is NaN where some number of the row is.
    """
    return implementation_for(rows).argmax(rows)


def mask_rows_(rows: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor) -> None:
    """Set in place to -inf what bit masks forbid: row lines[i] of `rows` [num_rows, width] keeps the bits of masks[i].

    rows are float32, lines int64 [num_lines], each at most once, masks int32 [num_lines, at least width / 32]: column
    c is kept if bit c % 32 of word c // 32 is set.
    """
    implementation_for(rows).mask_rows_(rows, lines, masks)


def uniform(seeds: torch.Tensor, positions: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
    """Draw one number in [0, 1) per row, as float64, that depends on the row's seed, position and choice alone.

    All are int64 [num_rows]; a seed is the bit pattern of its 64 bits.
    """
    return implementation_of(seeds.device, ANY_TYPE).uniform(seeds, positions, choices)


def sample_rows(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    is_greedy: torch.Tensor,
    masks: RowMasks | None = None,
) -> SampledRows:
    """Choose a token for each row of logits [num_rows, vocab_size]; what follows it is [num_rows] each.

    A greedy row takes the best token, the lowest id of equals. In others only tokens stay whose logit is among the
    `top_k` best (vocab_size: all) and ties with the last of them; of these the fewest most likely whose mass reaches
    `top_p` (1: all), of equals at that border the highest ids; of these, those at least `min_p` times as likely as the
    best. Probabilities are those over `temperature`. Then the first is chosen in the vocabulary's order whose cumulated
    probability exceeds `uniform` times the sum of all. A row is invalid if its best logit is NaN or infinite. `top_k`
    and `is_greedy` may be of any type of integers, the others of any of floats; sums are float64. What `masks` forbid
    counts as a logit of -inf; without them the logits may be of any type of floats.
    """
    implementation = implementation_for(logits)
    return implementation.sample_rows(logits, temperature, top_k, top_p, min_p, uniform, is_greedy, masks)


def write_kv(key: torch.Tensor, value: torch.Tensor, kv_cache: KVCache, slot_mapping: torch.Tensor) -> None:
    """Write key, value [num_tokens, num_kv_heads, head_dim] to the slots of `slot_mapping` [num_tokens].

    A slot is block x block_size + offset.
    """
    implementation_for(key).write_kv(key, value, kv_cache, slot_mapping)


def paged_attention(
    query: torch.Tensor,
    kv_cache: KVCache,
    block_tables: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend causally from each request's last tokens to all of its tokens in the cache.

    query [num_tokens, num_heads, head_dim] holds the requests' new tokens one after the other, request i's from
    cu_seqlens_q[i] to cu_seqlens_q[i + 1]; block_tables [num_requests, max_blocks] and seq_lens [num_requests]
    say where its keys lie and how many there are, the new tokens included. A token sees the last `window` tokens,
    itself among them, or all; scores are capped by softcap x tanh(score / softcap). position_bias [num_heads,
    num_distances] in float32 is added to the scores by how far back a token lies, its last column from there on
    (Raffel et al. 2020). sinks [num_heads] in float32 are scores of one more token for each head, whose value is zero
    (Xiao et al. 2023). Returns the shape of query.
    """
    return implementation_for(query).paged_attention(
        query, kv_cache, block_tables, cu_seqlens_q, seq_lens, scale, window, softcap, position_bias, sinks
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
    """Divide each row of x [..., hidden] by its root mean square (Zhang and Sennrich 2019) and scale it by `weight`.

    With `unit_offset` the scale is 1 + weight, and the product is rounded once, as Gemma has it.
    """
    return implementation_for(x).rms_norm(x, weight, eps, unit_offset)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """Add x to `residual` in place and return the norm of the sum; all [num_tokens, hidden]."""
    return implementation_for(x).add_rms_norm(x, residual, weight, eps, unit_offset)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Bring each row of x [num_tokens, hidden] to mean 0 and variance 1 (Ba et al. 2016), then scale and shift it."""
    return implementation_for(x).layer_norm(x, weight, bias, eps)


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [num_tokens, num_heads, head_dim] by half-split pairs (Su et al. 2021).

    cos and sin: [num_tokens, head_dim].
    """
    return implementation_for(x).rotary_embedding(x, cos, sin)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for x = [gate, up] along the last axis: [num_tokens, 2 * n] -> [num_tokens, n] (Shazeer 2020)."""
    return implementation_for(x).silu_and_mul(x)


def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """gelu_tanh(gate) * up for x = [gate, up] along the last axis: [num_tokens, 2 * n] -> [num_tokens, n]."""
    return implementation_for(x).gelu_tanh_and_mul(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x times the mass of the normal distribution below x (Hendrycks and Gimpel 2016): [num_tokens, n] -> the same."""
    return implementation_for(x).gelu(x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Approximate `gelu` by a hyperbolic tangent, as in the same paper."""
    return implementation_for(x).gelu_tanh(x)
