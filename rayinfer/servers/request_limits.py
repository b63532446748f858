"""Limits of what one request may ask for, the same for every protocol; each is a setting of the service."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayinfer.errors import ConfigError, InvalidParameter, shown
from rayinfer.sampling_params import (
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_CHOICES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
    SamplingParams,
)
from rayinfer.setting_names import describe_validation_error


class RequestLimits(BaseModel):
    """Most that one request may ask for; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_n: int = Field(default=128, ge=1, le=MAX_CHOICES, description="choices of a prompt (n, best_of)")
    max_prompts: int = Field(default=1024, ge=1, le=2**16, description="prompts of a completion")
    max_choices: int = Field(default=1024, ge=1, le=2**16, description="choices of all prompts: prompts times n")
    # A beam search sends a request for each of its sequences at each step, with its whole prompt.
    max_beams: int = Field(default=32, ge=1, le=512, description="sequences of a beam search: prompts times n")
    max_beam_tokens: int = Field(
        default=2**15, ge=1, le=2**24, description="prompt tokens of a beam search, in all its sequences"
    )
    max_stop_strings: int = Field(default=16, ge=1, le=MAX_STOP_STRINGS, description="stop strings")
    max_logit_bias: int = Field(default=1024, ge=0, le=MAX_BIASED_TOKENS, description="tokens in logit_bias")
    max_bad_words: int = Field(default=256, ge=0, le=MAX_BAD_WORDS, description="texts in bad_words")
    max_logprobs: int = Field(default=20, ge=0, le=MAX_LOGPROBS, description="likeliest tokens at each place")
    max_logprob_token_ids: int = Field(
        default=128, ge=0, le=MAX_LOGPROB_TOKEN_IDS, description="ids in logprob_token_ids"
    )
    # Each log probability takes a few hundred bytes until the response is sent; those of prompts come all at once.
    max_prompt_logprobs: int = Field(default=2**18, ge=1, le=2**24, description="log probabilities of all its prompts")
    max_response_logprobs: int = Field(
        default=2**22, ge=1, le=2**28, description="log probabilities of a whole response"
    )
    # Of the prompts, in all choices of one response, which the event loop sends in one piece.
    max_repeated_chars: int = Field(
        default=2**22, ge=1, le=2**28, description="characters of prompts in a response (echo)"
    )
    max_repeated_token_ids: int = Field(
        default=2**18, ge=1, le=2**24, description="token ids of prompts in a response (return_token_ids, /tokenize)"
    )
    # Of predictions.
    max_inputs: int = Field(default=2048, ge=1, le=2**16, description="inputs of a prediction: texts, pairs, documents")
    max_response_numbers: int = Field(default=2**23, ge=1, le=2**27, description="numbers in a response of predictions")
    max_images: int = Field(default=8, ge=1, le=1024, description="images of a request")
    max_image_bytes: int = Field(default=10 * 2**20, ge=1, le=2**26, description="bytes of an encoded image")
    max_image_pixels: int = Field(default=25_000_000, ge=1, le=2**28, description="pixels of an image")
    max_image_side: int = Field(default=8192, ge=1, le=2**16, description="pixels of an image's longer side")

    def check_params(self, params: SamplingParams) -> None:
        """Raise InvalidParameter for settings beyond the limits."""
        self.check_n(params.n)
        check_items("stop", params.stop_strings, self.max_stop_strings)
        check_items("logit_bias", params.biases, self.max_logit_bias)
        check_items("bad_words", params.bad_texts, self.max_bad_words)
        check_items("logprob_token_ids", params.listed_ids, self.max_logprob_token_ids)
        self.check_num_logprobs("logprobs", params.logprobs)
        self.check_num_logprobs("prompt_logprobs", params.prompt_logprobs, least=-1)

    def check_n(self, n: int | None) -> None:
        """Raise InvalidParameter for a number of choices outside the limits."""
        if n is not None and not 1 <= n <= self.max_n:
            raise InvalidParameter(f"n must be an integer from 1 to {self.max_n}, got {shown(n)}", "n")

    def check_beams(self, prompts: Sequence[Sequence[int]], width: int) -> None:
        """Raise InvalidParameter for a beam search of too many sequences, or of too long ones."""
        num_beams, num_tokens = len(prompts) * width, sum(map(len, prompts)) * width
        if num_beams > self.max_beams:
            raise InvalidParameter(
                f"n: {len(prompts)} prompts with n={width} make {num_beams} sequences of a beam search, "
                f"a request may ask for {self.max_beams}",
                "n",
            )
        if num_tokens > self.max_beam_tokens:
            raise InvalidParameter(
                f"use_beam_search: all sequences together repeat {num_tokens} tokens of prompts at each step, "
                f"a request may have {self.max_beam_tokens}",
                "use_beam_search",
            )

    def check_num_logprobs(self, field: str, count: int | None, *, least: int = 0) -> None:
        """Raise InvalidParameter for a number of likeliest tokens outside the limits."""
        if count is not None and not least <= count <= self.max_logprobs:
            raise InvalidParameter(
                f"{field} must be an integer from {least} to {self.max_logprobs}, got {shown(count)}", field
            )

    def check_num_inputs(self, num_inputs: int, field: str) -> None:
        """Raise InvalidParameter for no input of a prediction, and for too many."""
        if not 1 <= num_inputs <= self.max_inputs:
            raise InvalidParameter(f"{field} must hold 1 to {self.max_inputs} items, got {num_inputs}", field)

    def check_num_choices(self, num_prompts: int, n: int) -> None:
        """Raise InvalidParameter for too many prompts, and for too many choices of all of them."""
        if num_prompts > self.max_prompts:
            raise InvalidParameter(f"prompt must hold at most {self.max_prompts} prompts, got {num_prompts}", "prompt")
        if num_prompts * n > self.max_choices:
            raise InvalidParameter(
                f"{num_prompts} prompts with n={n} make {num_prompts * n} choices, "
                f"a request may ask for {self.max_choices}",
                "n",
            )


DEFAULT_REQUEST_LIMITS = RequestLimits()


def request_limits(settings: Mapping[str, Any]) -> RequestLimits:
    """Validate limits; raises a ConfigError that names every invalid one."""
    try:
        return RequestLimits.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None


def check_items(field: str, items: Sequence[Any], most: int) -> None:
    """Raise InvalidParameter for a list that is too long."""
    if len(items) > most:
        raise InvalidParameter(f"{field} must hold at most {most} items, got {len(items)}", field)
