"""One stage of a model whose other stages are processes of their own, connected by an engine's own links."""

from collections.abc import Mapping, Sequence

import torch
from torch.distributed import ProcessGroup

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.engine.ranks.pipeline_link import PipelineLink
from rayinfer.layers.checkpoint_slices import CheckpointSlice
from rayinfer.layers.shards import ShardSlice
from rayinfer.models.decoder import Decoder
from rayinfer.models.encoder_decoder import EncoderDecoder
from rayinfer.tensor_parallel import RankCoordinates, Shard
from rayinfer_kernels import ops
from support.golden.decoder_runs import CPU


class LinkedStage:
    """A Decoder that waits for the stage before it; all stages receive the logits of the last one."""

    def __init__(self, stage: Decoder, coordinates: RankCoordinates, world: ProcessGroup, dtype: torch.dtype) -> None:
        self.stage, self.coordinates, self.config, self._dtype = stage, coordinates, stage.config, dtype
        self.link = PipelineLink(coordinates, world, CPU, stage.config.hidden_size, dtype)
        self._world = world

    @property
    def num_layers_here(self) -> int:
        """See Decoder."""
        return self.stage.num_layers_here

    @property
    def num_kv_heads_here(self) -> int:
        """See Decoder."""
        return self.stage.num_kv_heads_here

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """See Decoder."""
        self.stage.prepare(dtype, device, max_positions, longest_sequence)

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """See Decoder."""
        self.stage.bind_kv_caches(kv_caches)

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Decoder."""
        received = None if self.coordinates.is_first_stage else self.link.receive(len(token_ids))
        passed = self.stage.forward(token_ids, batch, received)
        if not self.coordinates.is_last_stage:
            self.link.send_next(passed)
        return passed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Decoder; the first rank of the last stage sends them to all others."""
        own = self.stage.logits(hidden) if self.coordinates.is_last_stage else None
        received = torch.empty(len(hidden), self.config.vocab_size, dtype=self._dtype) if own is None else own.clone()
        self._world.broadcast(received, self.coordinates.world_size - self.coordinates.tensor_parallel_size).wait()
        return received if own is None else own

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """It is a shard already."""
        raise NotImplementedError

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """It is loaded already."""
        raise NotImplementedError

    def known_name(self, tensor_name: str) -> str | None:
        """It is loaded already."""
        raise NotImplementedError


class LinkedEncoderDecoder(LinkedStage):
    """A stage of an encoder-decoder."""

    stage: EncoderDecoder

    def allocate_sources(self, num_rows: int, max_source_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """See EncoderDecoder."""
        self.stage.allocate_sources(num_rows, max_source_tokens, dtype, device)

    def read_sources(self, rows: Sequence[int], sources: Sequence[torch.Tensor]) -> None:
        """See EncoderDecoder; what the last stage has encoded is given back to all others."""
        lengths = [len(source) for source in sources]
        received = None if self.coordinates.is_first_stage else self.link.receive(sum(lengths))
        encoded = self.stage.encode(sources, received)
        if self.coordinates.is_last_stage:
            self.link.broadcast_from_last(encoded)
        else:
            self.link.send_next(encoded)
            encoded = self.link.receive_from_last(sum(lengths))
        self.stage.keep_sources(rows, lengths, encoded)
