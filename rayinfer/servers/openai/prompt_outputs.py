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


_Answer = AsyncGenerator[RequestOutput, None]
_Outputs = asyncio.Queue[PromptOutput | _PromptEnd]


def generate_outputs(
    generator: TextGenerator, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[PromptOutput, None]:
    """Run the requests side by side and yield their outputs as they come; the first failure ends them all.

    Raises what the generator refuses at once, for any of them and before any has begun.
    """
    answers = [_generate(generator, request) for request in requests]
    return _outputs_of_one(answers[0]) if len(answers) == 1 else _outputs_of_all(answers)


async def _outputs_of_one(answer: _Answer) -> AsyncGenerator[PromptOutput, None]:
    async with aclosing(answer) as outputs:
        async for output in outputs:
            yield PromptOutput(0, output)


async def _outputs_of_all(answers: Sequence[_Answer]) -> AsyncGenerator[PromptOutput, None]:
    queue: _Outputs = asyncio.Queue(_MAX_OUTPUTS_AHEAD)
    tasks = [asyncio.create_task(_feed(queue, answer, i)) for i, answer in enumerate(answers)]
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


async def _feed(queue: _Outputs, answer: _Answer, prompt: int) -> None:
    try:
        async with aclosing(answer) as outputs:
            async for output in outputs:
                await queue.put(PromptOutput(prompt, output))
    except Exception as error:
        await queue.put(_PromptEnd(error))
    else:
        await queue.put(_PromptEnd())


def _generate(generator: TextGenerator, request: GenerationRequest) -> _Answer:
    # TextGenerator promises that closing the iterator aborts the request, so it can be closed.
    return cast(_Answer, generator.generate(request))
