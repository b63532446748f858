"""Validation of requests by the engine: whatever passes can be computed to its end."""

from array import array

import numpy as np

from rayinfer.engine.plan.step_plan import Int32Array
from rayinfer.errors import InvalidParameter, PromptTooLong, shown
from rayinfer.priority_queue import BACKGROUND_PRIORITY
from rayinfer.protocols import GenerationRequest, ModelDescription

MAX_PRIORITY = BACKGROUND_PRIORITY
MAX_TIMEOUT_S = 10**9


def checked_token_ids(request: GenerationRequest, description: ModelDescription) -> Int32Array:
    """Check a request with n == 1 and return its tokens; raises RequestError for one that could never finish."""
    params, num_outputs = request.sampling_params, len(request.output_token_ids)
    if not request.prompt_token_ids:
        raise InvalidParameter("prompt must not be empty", "prompt")
    _check_length(len(request.prompt_token_ids) + num_outputs, params.max_tokens, description.max_model_len)
    token_ids = token_array([*request.prompt_token_ids, *request.output_token_ids], description.vocab_size)
    if params.n != 1:
        raise InvalidParameter(f"n must be 1 for one choice of a request, got {params.n}", "n")
    if params.max_tokens is not None and num_outputs >= max(params.max_tokens, 1):
        raise InvalidParameter(f"max_tokens is {params.max_tokens}, but {num_outputs} are there already", "max_tokens")
    params.check_vocabulary(description.vocab_size)
    if params.bad_texts:
        raise InvalidParameter("bad_words must be tokenized before they are sent to an engine", "bad_words")
    check_urgency(request.priority, request.timeout_s)
    return token_ids


def checked_source(request: GenerationRequest, description: ModelDescription) -> Int32Array:
    """Check an encoder's source tokens; raises RequestError for what it cannot read or return."""
    num_tokens, limit = len(request.prompt_token_ids), description.max_model_len
    if not num_tokens:
        raise InvalidParameter("prompt must not be empty", "prompt")
    if num_tokens > limit:
        raise PromptTooLong(
            f"This model reads at most {limit} tokens. However, your prompt has {num_tokens} tokens.",
            "prompt",
            "context_length_exceeded",
        )
    request.sampling_params.check_prompt_is_not_scored()
    return token_array(request.prompt_token_ids, description.vocab_size)


def _check_length(num_tokens: int, max_tokens: int | None, limit: int) -> None:
    num_new = 0 if max_tokens == 0 else 1  # without a new token the prompt may fill the context
    if num_tokens + num_new > limit:
        raise PromptTooLong(
            f"This model's maximum context length is {limit} tokens. However, your prompt has {num_tokens} tokens"
            + (" and needs room for at least one more." if num_new else "."),
            "prompt",
            "context_length_exceeded",
        )


def token_array(prompt: list[int], vocab_size: int) -> Int32Array:
    """Return token ids as an array; raises InvalidParameter for one outside the vocabulary."""
    try:
        # `array` refuses non-integers, much faster than a check of each.
        token_ids = np.frombuffer(array("i", prompt), np.int32)
    except (TypeError, OverflowError):
        token_ids = np.array([-1], np.int32)
    if token_ids.view(np.uint32).max() >= vocab_size:  # as unsigned, negative ids are above every size
        wrong = next((i for i in prompt if not (isinstance(i, int) and 0 <= i < vocab_size)), prompt)
        raise InvalidParameter(f"prompt must hold token ids from 0 to {vocab_size - 1}, got {shown(wrong)}", "prompt")
    return token_ids


def check_urgency(priority: object, timeout_s: object) -> None:
    """Raise InvalidParameter for a priority or time limit out of range."""
    is_integer = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_integer or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:  # type: ignore[operator]
        raise InvalidParameter(
            f"priority must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {shown(priority)}", "priority"
        )
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    # The remaining time may be zero or less by now: that request times out, but is valid.
    if timeout_s is not None and not (is_number and timeout_s <= MAX_TIMEOUT_S):  # type: ignore[operator]
        raise InvalidParameter(
            f"timeout_s must be a number of at most {MAX_TIMEOUT_S} seconds, got {shown(timeout_s)}", "timeout_s"
        )
