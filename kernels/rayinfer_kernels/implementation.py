"""Protocol of an implementation of the operations; the torch reference documents each."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from rayinfer_kernels.encoder_stack import EmbeddingWeights, EncoderLayerWeights, EncoderStack, EncoderStackShape
from rayinfer_kernels.kv_cache import KVCache
from rayinfer_kernels.layer_stack import LayerStack, LayerWeights, StackShape
from rayinfer_kernels.low_rank import LowRank
from rayinfer_kernels.packed_weight import PackedWeight


class ArgmaxResult(NamedTuple):
    """Maximum of each row, float32 [num_rows], and the index of its first occurrence, int64 [num_rows]."""

    values: torch.Tensor
    indices: torch.Tensor


class SampledRows(NamedTuple):
    """A token for each row, int64 [num_rows], and whether none could be chosen, bool [num_rows]: then it is 0."""

    token_ids: torch.Tensor
    is_invalid: torch.Tensor


class RowMasks(NamedTuple):
    """Bit masks of some rows: row lines[i], int64 [num_masks], keeps column c if bit c % 32 of bits[i, c // 32] is set.

    `bits` are int32 [num_masks, at least width / 32]; no line comes twice.
    """

    lines: torch.Tensor
    bits: torch.Tensor


class Implementation(Protocol):
    """All operations, for the devices and types that an implementation is selected for."""

    def pack(self, weight: torch.Tensor, is_gated: bool = False) -> PackedWeight | None:
        """Pack the weight of one or several linear layers into the GEMM kernels' layout, if that is worth it."""

    def layer_stack(
        self, layers: Sequence[LayerWeights], last_norm: torch.Tensor, shape: StackShape
    ) -> LayerStack | None:
        """Fuse a decoder's layers into one operation, if that is worth it."""

    def encoder_stack(
        self,
        layers: Sequence[EncoderLayerWeights],
        shape: EncoderStackShape,
        position_bias: torch.Tensor | None = None,
        embeddings: EmbeddingWeights | None = None,
    ) -> EncoderStack | None:
        """Fuse an encoder's layers into one operation, if that can be."""

    def packed_embedding(self, weight: PackedWeight, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Gather rows of a packed weight, [num_rows, in_features]; no index is checked."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply by a weight as the model has it."""

    def packed_linear(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, low_rank: LowRank | None = None
    ) -> torch.Tensor:
        """Multiply by a weight that `pack` or `pack_quantized` returned."""

    def packed_gated_linear(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        activation: str,
        low_rank: LowRank | None = None,
    ) -> torch.Tensor:
        """Multiply by such a weight that is gated, and gate its outputs."""

    def add_low_rank_(
        self, out: torch.Tensor, x: torch.Tensor, low_rank: LowRank, *, is_gated: bool = False
    ) -> torch.Tensor:
        """Add the terms of adapters to outputs of a weight as the model has it, in place."""

    def grouped_gemm(self, x: torch.Tensor, weight: torch.Tensor, group_starts: torch.Tensor) -> torch.Tensor:
        """Multiply each group of rows by its own matrix."""

    def packed_grouped_gemm(self, x: torch.Tensor, weight: PackedWeight, group_starts: torch.Tensor) -> torch.Tensor:
        """Multiply each group of rows by its own layer of such a weight."""

    def moe_combine(self, rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Sum a few weighted rows for each token."""

    def argmax(self, rows: torch.Tensor) -> ArgmaxResult:
        """Find the maximum of each row and its index."""

    def mask_rows_(self, rows: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor) -> None:
        """Set to -inf what bit masks forbid."""

    def uniform(self, seeds: torch.Tensor, positions: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """Draw one random number per row."""

    def sample_rows(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
        is_greedy: torch.Tensor,
        masks: RowMasks | None = None,
    ) -> SampledRows:
        """Choose a token for each row."""

    def write_kv(self, key: torch.Tensor, value: torch.Tensor, kv_cache: KVCache, slot_mapping: torch.Tensor) -> None:
        """Write keys and values to the cache."""

    def paged_attention(
        self,
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
        """Attend from the step's tokens to their requests' cached tokens."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False) -> torch.Tensor:
        """Normalize each row."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False
    ) -> torch.Tensor:
        """Add x to the residual in place and normalize each row of the sum."""

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalize each row around its mean."""

    def rotary_embedding(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate each head by its token's angles."""

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """Gate the second half of each row by the first."""

    def gelu_tanh_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """Gate the second half of each row by the first."""

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """Weigh each number by the normal distribution's mass below it."""

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """Approximate `gelu`."""
