"""The frame that every encoder fills: embeddings, layers and perhaps a norm and a head, on tokens without padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rayinfer.layers.checkpoint_slices import CheckpointSlice, checkpoint_slices, with_checkpoint_names
from rayinfer.layers.embedding import PositionEmbedding, TokenEmbedding
from rayinfer.layers.relative_position_bias import RelativePositionBias
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.encoder_decoder import EncoderLayer
from rayinfer.models.encoders.encoder_config import EncoderConfig
from rayinfer.models.encoders.heads import Head
from rayinfer.models.encoders.pooling import Pooling, pool
from rayinfer_kernels import ops

# Tensors of checkpoints that no encoder has a use for: heads of other tasks, and tables.
UNUSED = ("cls.", "lm_head.", "vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "qa_outputs.", "decoder.")
UNUSED_ENDINGS = (".position_ids", ".token_type_ids", ".inv_freq")


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts, one after the other; those of one length had better be neighbors."""

    token_ids: torch.Tensor  # int64 [num_tokens]
    token_types: torch.Tensor  # int64 [num_tokens], 1 in the second text of a pair
    positions: torch.Tensor  # int64 [num_tokens], in the text, from 0
    lengths: Sequence[int]


class Encoder(torch.nn.Module):
    """An encoder of the layers it is given; parts that a family does not have are None.

    `rotaries` has the rotary embedding of each layer, if any. `names` brings our names of tensors into the
    checkpoint's, and `prefix` stands before them where the checkpoint has a head.
    """

    def __init__(
        self,
        config: EncoderConfig,
        layers: Sequence[EncoderLayer],
        *,
        names: Mapping[str, str],
        prefix: str,
        head: Head | None,
        embed_positions: PositionEmbedding | None = None,
        embed_norm: torch.nn.Module,
        final_norm: torch.nn.Module | None = None,
        rotaries: Sequence[RotaryEmbedding | None] = (),
        position_bias: RelativePositionBias | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.position_bias = position_bias  # before the layers, or a layer would name it
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size)
        self.embed_positions = embed_positions
        has_types = config.num_token_types > 0
        self.embed_types = PositionEmbedding(config.num_token_types, config.hidden_size) if has_types else None
        self.embed_norm = embed_norm
        self.layers = torch.nn.ModuleList(layers)
        self.final_norm = final_norm
        self.head = head
        self._layers = list(zip(layers, rotaries or [None] * len(layers), strict=True))
        self._rotaries = {rotary for rotary in rotaries if rotary is not None}
        self._names, self._prefix = names, prefix
        self._stack: ops.EncoderStack | None = None

    @property
    def has_stack(self) -> bool:
        """Whether all layers run as one operation."""
        return self._stack is not None

    def use_stack(self, stack: ops.EncoderStack) -> None:
        """Run the layers by one operation from now on."""
        self._stack = stack

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """Name every tensor that the checkpoint must hold, with the slice of a parameter that it fills."""
        return with_checkpoint_names(self._names, checkpoint_slices(self))

    def known_name(self, tensor_name: str) -> str | None:
        """Rename a tensor of the checkpoint as in `checkpoint_slices`; None for one the model has no use for."""
        name = tensor_name.removeprefix(f"{self._prefix}.")
        is_of_head = name.startswith(("pooler.", "classifier.", "pre_classifier.", "head."))
        if name.startswith(UNUSED) or name.endswith(UNUSED_ENDINGS):
            return None
        return None if is_of_head and name not in self.checkpoint_slices() else name

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Compute the tables of positions, once the weights are in."""
        for rotary in self._rotaries:
            rotary.prepare(dtype, device)
        if self.position_bias is not None:
            self.position_bias.prepare()

    def forward(self, batch: TextBatch) -> torch.Tensor:
        """Compute the last hidden states [num_tokens, hidden_size]."""
        if self._stack is not None:
            return self._stack.run_tokens(self._rows(batch), batch.lengths)
        rows = self._rows(batch)
        x = self.embed_tokens.forward(rows.ids)
        if self.embed_types is not None:
            x = x + self.embed_types.forward(rows.types)
        if self.embed_positions is not None:
            x = x + self.embed_positions.forward(rows.positions)
        x = self.embed_norm.forward(x)
        angles = {rotary: rotary.angles(batch.positions) for rotary in self._rotaries}
        for layer, rotary in self._layers:
            x = layer.forward(x, batch.lengths, None if rotary is None else angles[rotary])
        return x if self.final_norm is None else self.final_norm.forward(x)

    def pooled(self, batch: TextBatch, pooling: Pooling) -> torch.Tensor:
        """Compute the last hidden states, pooled over each text: [num_texts, hidden_size]."""
        if self._stack is not None and (pooling == "mean" or pooling == "cls" or pooling == "last"):
            return self._stack.run_tokens(self._rows(batch), batch.lengths, pooling)
        return pool(self.forward(batch), batch.lengths, pooling)

    def _rows(self, batch: TextBatch) -> ops.TokenRows:
        types = batch.token_types if self.config.has_pair_types else torch.zeros_like(batch.token_types)
        return ops.TokenRows(batch.token_ids, types, batch.positions + self.config.position_offset)
