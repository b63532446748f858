"""All stages of a model in one process, one behind the other, as if they were one decoder."""

from collections.abc import Mapping, Sequence

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.layers.checkpoint_slices import CheckpointSlice
from rayinfer.layers.shards import ShardSlice
from rayinfer.models.decoder import Decoder
from rayinfer.models.encoder_decoder import EncoderDecoder
from rayinfer.tensor_parallel import Shard
from rayinfer_kernels import ops


class StagedDecoder:
    """A Decoder whose stages hand on what they would send to each other."""

    def __init__(self, stages: Sequence[Decoder]) -> None:
        self.stages, self.config = stages, stages[0].config

    @property
    def num_layers_here(self) -> int:
        """Layers of all stages."""
        return sum(stage.num_layers_here for stage in self.stages)

    @property
    def num_kv_heads_here(self) -> int:
        """The same in each of them."""
        return self.stages[0].num_kv_heads_here

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """See Decoder."""
        for stage in self.stages:
            stage.prepare(dtype, device, max_positions, longest_sequence)

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """See Decoder."""
        for stage in self.stages:
            own, kv_caches = kv_caches[: stage.num_layers_here], kv_caches[stage.num_layers_here :]
            stage.bind_kv_caches(own)

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Decoder."""
        for stage in self.stages:
            hidden = stage.forward(token_ids, batch, hidden)
        assert hidden is not None
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Decoder."""
        return self.stages[-1].logits(hidden)

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """Each stage is a share already."""
        raise NotImplementedError

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """They are loaded already."""
        raise NotImplementedError

    def known_name(self, tensor_name: str) -> str | None:
        """They are loaded already."""
        raise NotImplementedError


class StagedEncoderDecoder(StagedDecoder):
    """The stages of an encoder-decoder."""

    stages: Sequence[EncoderDecoder]

    def allocate_sources(self, num_rows: int, max_source_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """See EncoderDecoder."""
        for stage in self.stages:
            stage.allocate_sources(num_rows, max_source_tokens, dtype, device)

    def read_sources(self, rows: Sequence[int], sources: Sequence[torch.Tensor]) -> None:
        """See EncoderDecoder; all stages are given what the last one has encoded."""
        hidden = None
        for stage in self.stages:
            hidden = stage.encode(sources, hidden)
        assert hidden is not None
        for stage in self.stages:
            stage.keep_sources(rows, [len(source) for source in sources], hidden)
