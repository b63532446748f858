"""Limits of a key that need the prepared request: models, lengths and priorities."""

from dataclasses import replace
from typing import TYPE_CHECKING

from rayinfer.access.api_key import KeyLimits
from rayinfer.access.caller import Caller
from rayinfer.errors import InvalidParameter, PermissionDenied, PromptTooLong

if TYPE_CHECKING:
    from rayinfer.servers.generation.service import PreparedGeneration


def within_key_limits(caller: Caller, generation: "PreparedGeneration") -> "PreparedGeneration":
    """Return the generation with answers no longer than the key allows, where the client has not chosen a length.

    Raises PermissionDenied, PromptTooLong and InvalidParameter for what the key does not allow.
    """
    if caller.key is None:
        return generation
    limits = caller.key.limits
    check_model_and_priority(caller, generation.model.name, generation.priority)
    longest = max(map(len, generation.prompts), default=0)
    if generation.inputs:
        if limits.max_context is not None and longest > limits.max_context:
            raise PromptTooLong(
                f"The API key's maximum context length is {limits.max_context} tokens. "
                f"The longest input has {longest} tokens.",
                code="context_length_exceeded",
            )
        return generation
    num_sequences = len(generation.prompts) * generation.params.n
    if limits.concurrent_requests is not None and num_sequences > limits.concurrent_requests:
        raise InvalidParameter(
            f"the request has {num_sequences} sequences (prompts times n), and the API key permits "
            f"{limits.concurrent_requests} at the same time",
            "n",
        )
    most = _most_tokens(limits, longest)
    wanted = generation.params.max_tokens
    if most is None or (wanted is not None and wanted <= most):
        return generation
    if (field := generation.length_field) is not None:
        raise InvalidParameter(f"{field} is {wanted}, and the API key permits {most} tokens behind this prompt", field)
    return replace(generation, params=replace(generation.params, max_tokens=most))


def check_model_and_priority(caller: Caller, model: str, priority: int) -> None:
    """Raise PermissionDenied for a model or a priority that the caller's key does not allow."""
    if caller.key is None:
        return
    limits = caller.key.limits
    if not limits.allows_model(model):
        raise PermissionDenied("The API key does not permit this model.", "model", "model_not_permitted")
    if not limits.most_urgent <= priority <= limits.least_urgent:
        raise PermissionDenied(
            f"The API key permits priorities {limits.most_urgent} to {limits.least_urgent}, got {priority}.",
            "priority",
        )


def reserved_tokens(caller: Caller, generation: "PreparedGeneration") -> int:
    """Return how many tokens of each choice count from the begin: the length that the client or its key has chosen.

    A default may be the whole context, which would leave a key's other requests nothing: its tokens count as they come.
    """
    limit = None if caller.key is None or generation.inputs else caller.key.limits.max_tokens
    if generation.length_field is None and limit is None:
        return 0
    return min((length for length in (generation.params.max_tokens, limit) if length is not None), default=0)


def _most_tokens(limits: KeyLimits, longest_prompt: int) -> int | None:
    """Return the most tokens that an answer to the longest prompt may have; None for no limit."""
    if limits.max_context is None:
        return limits.max_tokens
    left = limits.max_context - longest_prompt
    if left < 1:
        raise PromptTooLong(
            f"The API key's maximum context length is {limits.max_context} tokens. "
            f"The prompt has {longest_prompt} tokens, which leaves no token for an answer.",
            code="context_length_exceeded",
        )
    return left if limits.max_tokens is None else min(left, limits.max_tokens)
