"""Preparation of admitted requests, and the hashes of their prompts."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from rayinfer.errors import TaskNotServed
from rayinfer.kv_cache.block_hash import hash_blocks, prefix_salt
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.routing.limits import RouterLimits


def prepare(request: GenerationRequest, description: ModelDescription, limits: RouterLimits) -> GenerationRequest:
    """Check the sampling parameters against the model, and fix what must be the same on every engine.

    A seed is drawn where the client gave none, so that a migrated stream continues with the same choices, and the
    priority is no more urgent than the tenant's limit. Prompts and bad words are checked and tokenized by the server.
    Raises RequestError.
    """
    priority = max(request.priority, limits.of_tenant(request.tenant).most_urgent)
    if request.prediction is not None or description.predictor is not None:
        return _prepare_item(request, description, priority)
    params = request.sampling_params
    if not description.scores_prompts:
        params.check_prompt_is_not_scored()
    params.check_leaves_a_token(
        description.eos_token_ids, description.vocab_size, never_generated=description.bad_token_sequences
    )
    if params.seed is None:
        params = params.with_seed(secrets.randbits(64))
    return replace(request, sampling_params=params, priority=priority)


def _prepare_item(request: GenerationRequest, description: ModelDescription, priority: int) -> GenerationRequest:
    """Check a predictor's item: nothing is sampled. Items without a text get their cost here, for all queues."""
    prediction, predictor = request.prediction, description.predictor
    if predictor is None:
        raise TaskNotServed(f"The model {description.name!r} generates text and makes no predictions.", "model")
    if prediction is None:
        raise TaskNotServed(f"The model {description.name!r} does not generate text.", "model")
    if not request.prompt_token_ids and not prediction.cost:
        prediction = replace(prediction, cost=predictor.cost_of(prediction))
    return replace(request, prediction=prediction, priority=priority)


def hash_prompt_blocks(request: GenerationRequest, block_size: int, weights_version: int = 0) -> Sequence[bytes]:
    """Hash the full blocks of a request's tokens as engines with these weights do."""
    tokens = request.prompt_token_ids
    if request.prediction is not None:
        return ()
    if request.output_token_ids:
        tokens = tokens + request.output_token_ids
    salt = prefix_salt(request.tenant, request.cache_salt, request.adapter, weights_version, request.image_digests)
    return hash_blocks(tokens, block_size, salt)
