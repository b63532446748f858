"""The engine of encoder-decoders: a prompt is a source to be read, and its answer is a text of its own."""

from dataclasses import replace
from typing import Any

from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.plan.step_plan import Int32Array
from rayinfer.engine.scheduling.request import Request
from rayinfer.engine.scheduling.request_checks import checked_source
from rayinfer.models.encoder_decoder_config import AnswerSettings
from rayinfer.protocols import GenerationRequest


class EncoderDecoderEngine(Engine):
    """An Engine whose requests bring their prompts along as sources, and begin with the token that begins answers.

    Prompt and answer may each be as long as `max_model_len`, the beginning token included. What penalties and
    sequences look at is the answer.
    """

    def __init__(self, *, answers: AnswerSettings, **parts: Any) -> None:
        super().__init__(**parts)
        self._answers = answers

    def _checked_request(self, request: GenerationRequest, source_token_ids: Int32Array | None = None) -> Request:
        source_token_ids = checked_source(request, self.description)
        params, description = request.sampling_params, self.description
        params.check_leaves_a_token(
            description.eos_token_ids, description.vocab_size, never_generated=self._answers.bad_token_sequences
        )
        if bad := self._answers.bad_token_sequences:
            params = replace(params, bad_token_sequences=(*params.bad_sequences, *bad))
        answer = replace(request, prompt_token_ids=[self._answers.start_token_id], sampling_params=params)
        return super()._checked_request(answer, source_token_ids)
