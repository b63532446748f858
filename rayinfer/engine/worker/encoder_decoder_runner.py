"""Model runner of encoder-decoders: encodes the sources of new requests before their first step."""

from collections.abc import Sequence

import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.executor import StepHandle
from rayinfer.engine.plan.step_plan import Int32Array, NewRequestData, StepPlan
from rayinfer.engine.ranks.pipeline_link import ONLY_STAGE, Stage
from rayinfer.engine.worker.static_runner import StaticRunner, StaticShapes
from rayinfer.models.encoder_decoder import EncoderDecoder


class EncoderDecoderRunner(StaticRunner):
    """A StaticRunner that also encodes sources, at most `max_read_tokens` at once unless a single one is longer."""

    def __init__(
        self,
        decoder: EncoderDecoder,
        sampler: Sampler,
        device: torch.device,
        shapes: StaticShapes,
        stage: Stage = ONLY_STAGE,
        *,
        max_read_tokens: int,
    ) -> None:
        super().__init__(decoder, sampler, device, shapes, stage)
        self._max_read_tokens = max_read_tokens

    def submit(self, plan: StepPlan) -> StepHandle:
        """Encode the sources of new requests, and compute the step."""
        for readers in self.read_together(plan.new_requests):
            self._read(readers)
        return super().submit(plan)

    def read_together(self, new_requests: Sequence[NewRequestData]) -> list[list[NewRequestData]]:
        """Group requests, in their order, into those whose sources are encoded at once."""
        groups: list[list[NewRequestData]] = []
        num_tokens = 0
        for reader in new_requests:
            num_more = len(_source_of(reader))
            if not groups or num_tokens + num_more > self._max_read_tokens:
                groups.append([])
                num_tokens = 0
            groups[-1].append(reader)
            num_tokens += num_more
        return groups

    @torch.inference_mode()
    def _read(self, readers: Sequence[NewRequestData]) -> None:
        assert isinstance(self.decoder, EncoderDecoder), "a source without a model that reads"
        sources = [torch.from_numpy(_source_of(reader)).to(self._device) for reader in readers]
        self.decoder.keep_sources(
            [reader.row for reader in readers],
            [len(source) for source in sources],
            self._encoded(self.decoder, sources),
        )

    def _encoded(self, decoder: EncoderDecoder, sources: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute this stage's layers, and return the last stage's output: [num_tokens, hidden_size]."""
        place, link = self._stage.coordinates, self._stage.link
        if link is None:
            return decoder.encode(sources)
        num_tokens = sum(map(len, sources))
        hidden = decoder.encode(sources, None if place.is_first_stage else link.receive(num_tokens))
        if place.is_last_stage:
            link.broadcast_from_last(hidden)
            return hidden
        link.send_next(hidden)
        return link.receive_from_last(num_tokens)


def _source_of(reader: NewRequestData) -> Int32Array:
    assert reader.source_token_ids is not None, "a request without a source"
    return reader.source_token_ids
