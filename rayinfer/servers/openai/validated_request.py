"""One validated request: prompts and parameters, and the form of its response."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayinfer.beam_search.search import BeamSearchParams
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.chat import ChatAnswer, PreparedChat
from rayinfer.servers.generation.service import PreparedGeneration
from rayinfer.servers.openai.chunks import CHAT, ChunkShape
from rayinfer.servers.openai.logprobs_formatter import LogprobsFormatter
from rayinfer.servers.openai.response_settings import ResponseSettings
from rayinfer.servers.openai.schemas import GenerationBody
from rayinfer.servers.served_model import ServedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatedRequest:
    """A completion or chat completion whose fields are all in order."""

    body: GenerationBody
    model: ServedModel
    params: SamplingParams
    prompts: Sequence[list[int]]
    shape: ChunkShape
    echoed_texts: list[str] | None = None
    chat: PreparedChat | None = None
    beams: BeamSearchParams | None = None  # in place of sampling
    returns_logprobs: bool = False  # with best_of they are computed in any case

    def prepared(self, header_priority: int | None) -> PreparedGeneration:
        """Return what the service generates from; the header's priority counts before the body's."""
        priority = header_priority if header_priority is not None else self.body.priority or 0
        if self.chat is not None:
            return replace(self.chat.generation, priority=priority, beams=self.beams)
        return PreparedGeneration(
            model=self.model,
            params=self.params,
            prompts=self.prompts,
            length_field=self.body.length_field,
            priority=priority,
            cache_salt=self.body.cache_salt or "",
            form_field=self.body.form_field,
            beams=self.beams,
        )

    def response_settings(self, name: str) -> ResponseSettings:
        """Return the settings of the response to the request of this name."""
        options = self.body.stream_options
        with_usage = bool(options and options.include_usage)
        return ResponseSettings(
            id=f"{'chatcmpl' if self.shape is CHAT else 'cmpl'}-{name}",
            created=int(time.time()),
            model=self.model.name,
            prompts=self.prompts,
            num_choices=self.params.n,
            num_returned=self.body.num_returned if self.body.is_best_of else None,
            echoed_texts=self.echoed_texts,
            new_answer=ChatAnswer if self.chat is None else self.chat.new_answer,
            skips_special_tokens=self.params.skip_special_tokens,
            logprobs=self._formatter(self.params.logprobs if self.returns_logprobs else None, self.params.listed_ids),
            prompt_logprobs=self._formatter(self.body.prompt_logprobs),
            with_token_ids=bool(self.body.return_token_ids),
            has_service_tier=self.body.service_tier is not None,
            with_usage=with_usage,
            with_usage_in_every_chunk=with_usage and bool(options and options.continuous_usage_stats),
        )

    def _formatter(self, num_top: int | None, listed: tuple[int, ...] = ()) -> LogprobsFormatter | None:
        if num_top is None:
            return None
        as_token_ids = bool(self.body.return_tokens_as_token_ids)
        tokenizer = self.model.tokenizer
        return LogprobsFormatter(tokenizer=tokenizer, num_top=num_top, listed=listed, as_token_ids=as_token_ids)
