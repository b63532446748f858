"""The frame that every encoder-decoder fills: it reads a source once, and then decodes like any other decoder."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch

from rayinfer.attention.cross_attention_blocks import BLOCK_SIZE, CrossAttentionBatch, CrossAttentionBlocks
from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.layers.checkpoint_slices import CheckpointSlice, checkpoint_slices
from rayinfer.layers.cross_attention import CrossAttention
from rayinfer.layers.embedding import VOCABULARY, TokenEmbedding
from rayinfer.layers.linear import Linear
from rayinfer.layers.matrix import Matrix, pack_matrices
from rayinfer.layers.relative_position_bias import RelativePositionBias
from rayinfer.layers.residual import Residual
from rayinfer.layers.rotary_embedding import Angles
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.layers.shards import Shardable, ShardSlice, shard_heads
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sharding import leave_out
from rayinfer.tensor_parallel import UNSHARDED, Shard, even_parts, split
from rayinfer_kernels import ops


class EncoderLayer(torch.nn.Module):
    """Attention among a source's tokens, and a feed-forward."""

    def __init__(self, attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = feed_forward

    def forward(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles | None = None) -> torch.Tensor:
        """x [num_tokens, hidden_size], of sources of these `lengths`, -> the same shape."""
        return self.mlp.forward(self.self_attn.forward(x, lengths, angles))


class CrossDecoderLayer(torch.nn.Module):
    """Attention to the answer so far, attention to the source, and a feed-forward."""

    def __init__(self, attention: Residual, cross_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attn = attention
        self.cross_attn = cross_attention
        self.mlp = feed_forward

    def forward(self, x: torch.Tensor, batch: AttentionBatch, sources: CrossAttentionBatch) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        x = self.self_attn.forward(x, None, batch)
        return self.mlp.forward(self.cross_attn.forward(x, sources))


class EncoderDecoder(torch.nn.Module, Shardable):
    """A Decoder whose tokens also attend to a source, one per row of the batch.

    Both sides share one embedding. A norm behind the layers is None where the layers end with one. `position_biases`
    are those that layers have in common: every stage needs them, whichever layers it has.
    """

    def __init__(
        self,
        config: ModelConfig,
        encoder_layers: Sequence[EncoderLayer],
        decoder_layers: Sequence[CrossDecoderLayer],
        encoder_norm: torch.nn.Module | None = None,
        decoder_norm: torch.nn.Module | None = None,
        position_biases: Sequence[RelativePositionBias] = (),
    ) -> None:
        super().__init__()
        self.config = config
        self.position_biases = torch.nn.ModuleList(position_biases)  # before the layers, or a layer would name them
        self.shared = TokenEmbedding(config.vocab_size, config.hidden_size)
        self.encoder_layers = torch.nn.ModuleList(encoder_layers)
        self.decoder_layers = torch.nn.ModuleList(decoder_layers)
        self.encoder_norm, self.decoder_norm = encoder_norm, decoder_norm
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self._encoder_layers, self._decoder_layers = list(encoder_layers), list(decoder_layers)  # of this stage
        self._sources: CrossAttentionBlocks | None = None
        self._shard = UNSHARDED
        self._vocabulary = [range(config.vocab_size)]  # of each tensor rank, in the head

    @property
    def num_layers_here(self) -> int:
        """See Decoder."""
        return len(self._decoder_layers)

    @property
    def num_kv_heads_here(self) -> int:
        """See Decoder."""
        return len(shard_heads(self.config.num_heads, self.config.num_kv_heads, self._shard.coordinates).key_value)

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a stage has some layers of either side; an encoder may have fewer than there are stages."""
        coordinates = shard.coordinates
        encoder_parts = even_parts(len(self._encoder_layers), coordinates.pipeline_parallel_size)
        decoder_parts = split(len(self._decoder_layers), coordinates.pipeline_parallel_size, "layers")
        encoders, decoders = encoder_parts[coordinates.stage], decoder_parts[coordinates.stage]
        elsewhere: list[torch.nn.Module | None] = [
            *(layer for i, layer in enumerate(self._encoder_layers) if i not in encoders),
            *(layer for i, layer in enumerate(self._decoder_layers) if i not in decoders),
        ]
        if not coordinates.is_last_stage:
            elsewhere += [self.encoder_norm, self.decoder_norm, self.lm_head]
        if not coordinates.is_first_stage and not (coordinates.is_last_stage and self.lm_head is None):
            elsewhere.append(self.shared)
        leave_out(self, [module for module in elsewhere if module is not None])
        self._encoder_layers = self._encoder_layers[encoders.start : encoders.stop]
        self._decoder_layers = self._decoder_layers[decoders.start : decoders.stop]
        self._shard = shard
        self._vocabulary = split(self.config.vocab_size, shard.group.size, VOCABULARY)
        has_own_head = self.lm_head is not None and coordinates.is_last_stage
        return {"lm_head.weight": ShardSlice(0, (self._vocabulary[shard.group.rank],))} if has_own_head else {}

    @abstractmethod
    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] at `positions` -> [num_tokens, hidden_size], for encoder and decoder alike."""

    @abstractmethod
    def known_name(self, tensor_name: str) -> str | None:
        """See Decoder."""

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return checkpoint_slices(self)

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """Pack the weights and look the position biases up."""
        pack_matrices(self)
        for module in self.modules():
            if isinstance(module, RelativePositionBias):
                module.prepare()

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """Give the self-attention of each decoder layer its pool of blocks."""
        attentions = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for layer, kv_cache in zip(attentions, kv_caches, strict=True):
            layer.attention.bind(kv_cache)

    def allocate_sources(self, num_rows: int, max_source_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """Reserve, for each row of the batch, the keys and values of one source in every decoder layer."""
        self._sources = CrossAttentionBlocks(num_rows, max_source_tokens, device)
        num_blocks, config = self._sources.num_blocks, self.config
        for layer in self._cross_attentions:
            layer.bind(ops.allocate_kv_cache(num_blocks, BLOCK_SIZE, layer.num_heads, config.head_dim, dtype, device))

    def read_sources(self, rows: Sequence[int], sources: Sequence[torch.Tensor]) -> None:
        """Run the encoder over these sources, each int [num_source_tokens], and keep what rows attend to."""
        self.keep_sources(rows, [len(source) for source in sources], self.encode(sources))

    def encode(self, sources: Sequence[torch.Tensor], hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Run this stage's encoder layers over sources, each int [num_source_tokens]: [num_tokens, hidden_size].

        Each stage but the first goes on from `hidden`, what the one before it returned; what the last one returns is
        what `keep_sources` of all stages needs.
        """
        lengths = [len(source) for source in sources]
        if hidden is None:
            positions = torch.cat([torch.arange(length, device=sources[0].device) for length in lengths])
            hidden = self.embed(torch.cat(list(sources)), positions)
        for layer in self._encoder_layers:
            hidden = layer.forward(hidden, lengths)
        if self.encoder_norm is not None and self._shard.coordinates.is_last_stage:
            hidden = self.encoder_norm.forward(hidden)
        return hidden

    def keep_sources(self, rows: Sequence[int], lengths: Sequence[int], encoded: torch.Tensor) -> None:
        """Keep what rows attend to of sources of these lengths: encoded [num_tokens, hidden_size]."""
        assert self._sources is not None, "allocate the sources' blocks first"
        slot_mapping = self._sources.fill(rows, lengths)
        for attention in self._cross_attentions:
            attention.keep(encoded, slot_mapping)

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """token_ids [num_tokens] -> last hidden states [num_outputs, hidden_size]; see Decoder."""
        assert self._sources is not None, "allocate the sources' blocks first"
        sources = self._sources.of(batch)
        x = self.embed(token_ids, batch.positions) if hidden is None else hidden
        for layer in self._decoder_layers:
            x = layer.forward(x, batch, sources)
        if not self._shard.coordinates.is_last_stage:
            return x
        x = batch.output_rows(x)
        return x if self.decoder_norm is None else self.decoder_norm.forward(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        head: Matrix = self.shared if self.lm_head is None else self.lm_head
        return self._shard.group.all_gather(head.multiply(hidden), [len(part) for part in self._vocabulary])

    @property
    def _cross_attentions(self) -> list[CrossAttention]:
        return [module for module in self.modules() if isinstance(module, CrossAttention)]
