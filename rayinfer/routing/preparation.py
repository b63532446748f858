"""Preparation of requests before they wait for an engine."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from rayinfer.errors import PromptTooLong
from rayinfer.kv_cache.block_hash import prefix_digests, prefix_salt
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.routing.limits import RouterLimits
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.tokenizer import Tokenizer


def prepare(
    request: GenerationRequest, description: ModelDescription, tokenizer: Tokenizer, limits: RouterLimits
) -> GenerationRequest:
    """Check a request against its model, and fix what must be the same on every engine.

    Bad words are tokenised, a seed is drawn where the client gave none, so that any engine that continues the stream
    makes the same choices, and the priority is no more urgent than the tenant may ask for. Raises RequestError.
    """
    _check_prompt(request, description)
    params = request.sampling_params.with_tokenized_bad_words(bad_word_tokenizer(tokenizer))
    params.check_leaves_a_token(
        description.eos_token_ids, description.vocab_size, never_generated=description.bad_token_sequences
    )
    if params.seed is None:
        params = params.with_seed(secrets.randbits(64))
    priority = max(request.priority, limits.of_tenant(request.tenant).most_urgent)
    return replace(request, sampling_params=params, priority=priority)


def block_digests(request: GenerationRequest, block_size: int, weights_generation: int = 0) -> Sequence[bytes]:
    """Hash the full blocks of a request's tokens as engines with these weights do."""
    tokens = request.prompt_token_ids
    if request.output_token_ids:
        tokens = tokens + request.output_token_ids
    salt = prefix_salt(request.tenant, request.cache_salt, request.adapter, weights_generation)
    return prefix_digests(tokens, block_size, salt)


def _check_prompt(request: GenerationRequest, description: ModelDescription) -> None:
    if not description.scores_prompts:
        request.sampling_params.check_prompt_is_not_scored()
    generates = request.sampling_params.max_tokens != 0  # a prompt that is only scored may fill the context
    num_tokens, longest = len(request.prompt_token_ids), description.longest_prompt(generates=generates)
    if num_tokens > longest:
        raise PromptTooLong(
            f"the prompt has {num_tokens} tokens, at most {longest} fit into the context of model "
            f"{description.name!r}{' beside one new token' if longest < description.max_model_len else ''}",
            "prompt",
            "context_length_exceeded",
        )
