"""Beam search of a client's prompts, by requests like those of any other client."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from rayinfer.beam_search.prompt_searches import BeamRequest, PromptSearches
from rayinfer.beam_search.search import BeamSearchParams
from rayinfer.errors import RequestTimedOut
from rayinfer.outputs import RequestOutput
from rayinfer.protocols import GenerationRequest
from rayinfer.servers.generation.prompt_outputs import PromptLists, PromptOutput, generate_outputs
from rayinfer.servers.served_model import ServedModel


async def search_beams(
    model: ServedModel, requests: Sequence[GenerationRequest], params: BeamSearchParams, lists: PromptLists
) -> AsyncGenerator[PromptOutput, None]:
    """Yield one output for each prompt, at the end of all searches; raises what any of their requests raises.

    Each step is admitted and scheduled like a client's request, and may go to another engine than the one before; the
    time limit is that of the whole search.
    """
    prompts = [list(request.prompt_token_ids) for request in requests]
    searches = PromptSearches(prompts, [params] * len(prompts), model.generator.describe(), model.tokenizer)
    first = requests[0]
    deadline_s = None if first.timeout_s is None else time.monotonic() + first.timeout_s
    while asked := searches.requests():
        remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            raise RequestTimedOut("The request's time ran out before its beam search had ended.")
        steps = [_step(first, each, remaining_s) for each in asked]
        searches.apply(await _outputs(model, steps, lists))
    found = zip(requests, searches.outputs(), searches.num_cached_tokens, strict=True)
    for number, (request, outputs, num_cached) in enumerate(found):
        output = RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=outputs,
            num_cached_tokens=num_cached,
            finished=True,
        )
        yield PromptOutput(number, output)


def _step(first: GenerationRequest, asked: BeamRequest, remaining_s: float | None) -> GenerationRequest:
    return replace(
        first,
        request_id=uuid.uuid4().hex,
        prompt_token_ids=asked.prompt_token_ids,
        sampling_params=asked.sampling_params,
        timeout_s=remaining_s,
        trace=False,
    )


async def _outputs(model: ServedModel, steps: Sequence[GenerationRequest], lists: PromptLists) -> list[RequestOutput]:
    found: dict[int, RequestOutput] = {}
    async with aclosing(generate_outputs(model.generator, steps, lists)) as outputs:
        async for each in outputs:
            found[each.prompt] = each.output  # the only one: a step has one token
    return [found[number] for number in range(len(steps))]
