"""The outputs of all prompts of one request as one stream, which ends everything it began when it is closed."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from rayinfer.outputs import RequestOutput
from rayinfer.protocols import GenerationRequest, TextGenerator

_MAX_OUTPUTS_AHEAD = 64  # a client that reads slowly holds up its own prompts, not our memory


@dataclass(frozen=True, slots=True)
class PromptOutput:
    """What is new for one of the prompts."""

    prompt: int
    output: RequestOutput


@dataclass(frozen=True, slots=True)
class _PromptEnd:
    error: Exception | None = None


_Outputs = asyncio.Queue[PromptOutput | _PromptEnd]


async def generate_outputs(
    generator: TextGenerator, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[PromptOutput, None]:
    """Run the requests side by side and yield their outputs as they come; the first failure ends them all."""
    if len(requests) == 1:
        async with aclosing(_generate(generator, requests[0])) as outputs:
            async for output in outputs:
                yield PromptOutput(0, output)
        return
    queue: _Outputs = asyncio.Queue(_MAX_OUTPUTS_AHEAD)
    tasks = [asyncio.create_task(_feed(queue, generator, request, i)) for i, request in enumerate(requests)]
    try:
        num_running = len(tasks)
        while num_running:
            event = await queue.get()
            if isinstance(event, PromptOutput):
                yield event
            elif event.error is not None:
                raise event.error
            else:
                num_running -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(queue: _Outputs, generator: TextGenerator, request: GenerationRequest, prompt: int) -> None:
    try:
        async with aclosing(_generate(generator, request)) as outputs:
            async for output in outputs:
                await queue.put(PromptOutput(prompt, output))
    except Exception as error:
        await queue.put(_PromptEnd(error))
    else:
        await queue.put(_PromptEnd())


def _generate(generator: TextGenerator, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
    # TextGenerator promises that closing the iterator aborts the request, so it can be closed.
    return cast(AsyncGenerator[RequestOutput, None], generator.generate(request))
