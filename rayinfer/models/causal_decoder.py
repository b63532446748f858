"""The frame that every decoder-only architecture fills: embedding, layers, final norm and output head."""

from collections.abc import Mapping, Sequence

import torch

from rayinfer.attention.paged_attention import AttentionBatch, PagedAttention
from rayinfer.layers.checkpoint_slices import CheckpointSlice, checkpoint_slices
from rayinfer.layers.decoder_layer import DecoderLayer
from rayinfer.layers.embedding import VOCABULARY, TokenEmbedding
from rayinfer.layers.linear import AdapterSlots, Linear
from rayinfer.layers.matrix import Matrix, pack_matrices
from rayinfer.layers.mixture_of_experts import MixtureOfExperts
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.layers.shards import Shardable, ShardSlice, shard_heads
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sharding import leave_out
from rayinfer.tensor_parallel import UNSHARDED, Shard, split
from rayinfer_kernels import ops

HEADLESS_PREFIXES = ("embed_tokens.", "layers.", "norm.")  # of tensors in checkpoints without an output head


class CausalDecoder(torch.nn.Module, Shardable):
    """A Decoder made of the layers it is given; `rotaries` has the rotary embedding of each layer, if any.

    Architectures override `embed`, `logits` or `known_name` where theirs differ.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[DecoderLayer],
        norm: torch.nn.Module,
        rotaries: Sequence[RotaryEmbedding | None],
    ) -> None:
        super().__init__()
        assert len(layers) == len(rotaries) == config.num_layers
        self.config = config
        self.model = torch.nn.Module()  # as the checkpoints' names have it
        self.model.embed_tokens = self._embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size)
        self.model.layers = torch.nn.ModuleList(layers)
        self.model.norm = self._norm = norm
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self._layers = list(zip(layers, rotaries, strict=True))
        self._rotaries = {rotary for rotary in rotaries if rotary is not None}
        self._read_before: tuple[int, ...] = ()  # layers whose inputs are kept
        self._has_window_pool = False
        self.states_read: torch.Tensor | None = None  # those of the last step, side by side
        self._stack: ops.LayerStack | None = None  # all layers as one operation, where there is such a one
        self.adapter_slots: AdapterSlots | None = None  # where requests may have adapters
        self._shard = UNSHARDED
        self._vocabulary = [range(config.vocab_size)]  # of each tensor rank, in the head

    @property
    def num_layers_here(self) -> int:
        """See Decoder."""
        return len(self._layers)

    @property
    def num_kv_heads_here(self) -> int:
        """See Decoder."""
        return len(shard_heads(self.config.num_heads, self.config.num_kv_heads, self._shard.coordinates).key_value)

    @property
    def windows(self) -> list[int | None]:
        """The sliding window of each layer here; None: it sees all."""
        return [attention.window for attention in self._attentions()]

    @property
    def is_stacked(self) -> bool:
        """Whether all layers run as one operation; known once it is prepared."""
        return self._stack is not None

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: leave out what is for other stages, and keep a part of the head's vocabulary."""
        coordinates, head = shard.coordinates, self._head
        kept = split(len(self._layers), coordinates.pipeline_parallel_size, "layers")[coordinates.stage]
        elsewhere: list[torch.nn.Module] = [layer for i, (layer, _) in enumerate(self._layers) if i not in kept]
        if not coordinates.is_first_stage:
            elsewhere += [part for name, part in self.model.named_children() if name not in ("layers", "norm")]
        if not coordinates.is_last_stage:
            elsewhere += [self._norm, *([] if self.lm_head is None else [self.lm_head])]
        leave_out(self, [part for part in elsewhere if part is not head or not coordinates.is_last_stage])
        self._layers = self._layers[kept.start : kept.stop]
        self._rotaries = {rotary for _, rotary in self._layers if rotary is not None}
        self._shard = shard
        self._vocabulary = split(self.config.vocab_size, shard.group.size, VOCABULARY)
        has_own_head = self.lm_head is not None and coordinates.is_last_stage
        return {"lm_head.weight": ShardSlice(0, (self._vocabulary[shard.group.rank],))} if has_own_head else {}

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return checkpoint_slices(self)

    def known_name(self, tensor_name: str) -> str | None:
        """Old checkpoints carry rotary tables, tied ones may carry a copy of the embedding, embedders lack a prefix."""
        if tensor_name.endswith("rotary_emb.inv_freq") or (tensor_name == "lm_head.weight" and self.lm_head is None):
            return None
        return f"model.{tensor_name}" if tensor_name.startswith(HEADLESS_PREFIXES) else tensor_name

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """Pack the weights and compute the rotary tables; see Decoder."""
        pack_matrices(self)
        for rotary in self._rotaries:
            rotary.prepare(dtype, device, max_positions, longest_sequence)
        self._stack = self._stacked_layers()

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """Give each layer its pool of blocks."""
        for attention, kv_cache in zip(self._attentions(), kv_caches, strict=True):
            attention.bind(kv_cache)
        if self._stack is not None:
            (rotary,) = self._rotaries
            self._stack.bind(kv_caches, *rotary.tables)

    def read_states(self, layers: Sequence[int]) -> None:
        """Keep what enters these layers as `states_read`; all layers run one by one then. It comes before `prepare`."""
        self._read_before = tuple(layers)

    def use_window_pool(self) -> None:
        """Let layers with a window have blocks of their own; all layers run one by one then. Before `prepare`."""
        self._has_window_pool = True

    def adapted_layers(self) -> dict[str, Linear]:
        """Return the linear layers here that adapters may change, by path: all but those of experts and the head."""
        routers = [module.gate for module in self.modules() if isinstance(module, MixtureOfExperts)]
        return {
            path: module
            for path, module in self.named_modules()
            if path.startswith("model.layers.") and isinstance(module, Linear) and module not in routers
        }

    def use_adapters(self, num_slots: int) -> None:
        """Let each token of a step have one of `num_slots` adapters, or none. It comes before `prepare`."""
        self.adapter_slots = AdapterSlots(num_slots)
        for layer in self.adapted_layers().values():
            layer.use_adapters(self.adapter_slots)

    @property
    def num_positions(self) -> int:
        """Positions of the rotary tables; `fill_positions` gives the next ones to tokens of a step."""
        raise NotImplementedError

    def reserve_positions(self, num_tokens: int) -> None:
        """Make room for so many tokens of a step that have three positions. It comes before `prepare`."""

    def fill_positions(self, positions: torch.Tensor) -> None:
        """Let the positions from `num_positions` on stand for these, time, height and width: int64 [3, num_tokens]."""
        raise NotImplementedError

    def embed(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        return self.embed_tokens(token_ids)

    def embed_tokens(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] -> the rows of the embedding, [num_tokens, hidden_size]."""
        return self._embed_tokens.forward(token_ids)

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """token_ids [num_tokens] -> last hidden states [num_outputs, hidden_size]; see Decoder."""
        x = self.embed(token_ids, batch) if hidden is None else hidden
        if self._stack is not None and (batch.adapters is None or self._stack.takes_adapters):
            return self._stack.run(x, batch)
        if self.adapter_slots is not None:
            self.adapter_slots.tokens = batch.adapters
        residual = torch.zeros_like(x)
        angles = {rotary: rotary.angles(batch.positions) for rotary in self._rotaries}
        states: dict[int, torch.Tensor] = {}
        for index, (layer, rotary) in enumerate(self._layers):
            if index in self._read_before:
                states[index] = residual + x
            x = layer.forward(x, residual, None if rotary is None else angles[rotary], batch)
        if states:
            self.states_read = torch.cat([states[index] for index in self._read_before], -1)
        if not self._shard.coordinates.is_last_stage:
            return residual + x
        out: torch.Tensor = self._norm.forward(batch.output_rows(x), batch.output_rows(residual))
        return out

    def _stacked_layers(self) -> ops.LayerStack | None:
        layers = [stacked for layer, _ in self._layers if (stacked := layer.stacked()) is not None]
        shapes = {layer.shape for layer in layers}
        if (
            not self._shard.is_unsharded
            or self._read_before
            or self._has_window_pool
            or len(layers) < len(self._layers)
            or len(shapes) != 1
            or len(self._rotaries) != 1
        ):
            return None
        (shape,) = shapes
        if not isinstance(self._norm, RMSNorm) or self._norm.plain_eps != shape.eps:
            return None
        return ops.layer_stack([layer.weights for layer in layers], self._norm.weight, shape)

    def _attentions(self) -> list[PagedAttention]:
        return [module for module in self.modules() if isinstance(module, PagedAttention)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        return self._shard.group.all_gather(self._head.multiply(hidden), [len(part) for part in self._vocabulary])

    @property
    def _head(self) -> Matrix:
        return self._embed_tokens if self.lm_head is None else self.lm_head
