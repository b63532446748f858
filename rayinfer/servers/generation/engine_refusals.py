"""Errors of requests that an engine refuses before any token, for an image or an adapter that it has read itself."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from rayinfer.errors import AdapterRefused, BadImage, RequestError
from rayinfer.servers.generation.prompt_outputs import PromptOutput

Outputs = AsyncGenerator[PromptOutput, None]


def refusing_bad_images(outputs: Outputs) -> Outputs:
    """Yield the outputs of a prompt with images; raises BadImage where the engine refuses it before any token."""
    return _refusing(outputs, BadImage, "messages")


def refusing_bad_adapters(outputs: Outputs) -> Outputs:
    """Yield the outputs of requests with an adapter; raises AdapterRefused where the engine refuses one so."""
    return _refusing(outputs, AdapterRefused, "model")


async def _refusing(outputs: Outputs, error: type[RequestError], param: str) -> Outputs:
    has_tokens = False
    async with aclosing(outputs):
        async for output in outputs:
            for completion in output.output.outputs:
                has_tokens = has_tokens or bool(completion.token_ids)
                if completion.finish_reason == "error" and completion.error is not None and not has_tokens:
                    raise error(completion.error, param)
            yield output
