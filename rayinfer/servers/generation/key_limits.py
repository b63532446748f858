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
    if not limits.allows_model(generation.model.name):
        raise PermissionDenied("The API key does not permit this model.", "model", "model_not_permitted")
    if not limits.most_urgent <= generation.priority <= limits.least_urgent:
        raise PermissionDenied(
            f"The API key permits priorities {limits.most_urgent} to {limits.least_urgent}, got {generation.priority}.",
            "priority",
        )
    longest = max(map(len, generation.prompts), default=0)
    if generation.inputs:
        if limits.max_context is not None and longest > limits.max_context:
            raise PromptTooLong(
                f"The API key's maximum context length is {limits.max_context} tokens. "
                f"The longest input has {longest} tokens.",
                code="context_length_exceeded",
            )
        return generation
    most = _most_tokens(limits, longest)
    wanted = generation.params.max_tokens
    if most is None or (wanted is not None and wanted <= most):
        return generation
    if (field := generation.length_field) is not None:
        raise InvalidParameter(f"{field} is {wanted}, and the API key permits {most} tokens behind this prompt", field)
    return replace(generation, params=replace(generation.params, max_tokens=most))


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
