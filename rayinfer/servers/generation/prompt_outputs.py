"""The outputs of all prompts of one request as one stream, which ends everything it began when it is closed."""

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast

from rayinfer.errors import (
    GenerationRefused,
    ModelFilesGone,
    NotReady,
    QueueFull,
    RequestFailed,
    RequestTimedOut,
    Unavailable,
)
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.protocols import GenerationRequest, TextGenerator

_MAX_PROMPTS_AHEAD = 32  # that wait for their first output: to begin and end one takes 0.3 ms, while streams wait
_ENGINE_WAIT_S = 60.0  # how long a request that has begun waits for an engine, as streams that have lost theirs do
_ENGINE_POLL_S = 0.1
_MAX_OUTPUTS_AHEAD = 64  # a client that reads slowly holds up its own prompts, not our memory


@dataclass(frozen=True, slots=True)
class PromptOutput:
    """New output of one of the prompts."""

    prompt: int
    output: RequestOutput


@dataclass(frozen=True, slots=True)
class _PromptEnd:
    prompt: int
    error: Exception | None = None


_OutputStream = AsyncGenerator[RequestOutput, None]
_Outputs = asyncio.Queue[PromptOutput | _PromptEnd]


class PromptLists:
    """Requests with prompts left to begin, of all clients: they share the prompts that may wait evenly."""

    def __init__(self, num_ahead: int = _MAX_PROMPTS_AHEAD) -> None:
        self._num_ahead = num_ahead
        self._batches: weakref.WeakSet[_Batch] = weakref.WeakSet()

    def add(self, batch: "_Batch") -> None:
        """Add a request; it leaves when all its prompts have begun, or when it ends."""
        self._batches.add(batch)

    def max_ahead(self) -> int:
        """Return how many prompts of each request may wait for their first output now."""
        return max(1, self._num_ahead // max(1, sum(batch.has_waiting for batch in self._batches)))


def generate_outputs(
    generator: TextGenerator, requests: Sequence[GenerationRequest], lists: PromptLists | None = None
) -> AsyncGenerator[PromptOutput, None]:
    """Run the requests side by side and yield their outputs as they come; the first failure ends them all.

    Those beyond their share of _MAX_PROMPTS_AHEAD, and those that find the queue full, begin when one of the others has
    its first output: there may be more of them than may wait. Where all engines are gone by then, they wait for one:
    what the others have computed should not be lost. Raises at once what refuses the first of them, and
    whatever else refuses any of those that begin at once.
    """
    batch = _Batch(generator, requests, lists or PromptLists())
    return _outputs_of_one(batch.streams[0]) if len(requests) == 1 else _outputs_of_all(batch)


class _Batch:
    """The requests of one client's request: those that have begun, and those that wait for a place in the queue."""

    def __init__(self, generator: TextGenerator, requests: Sequence[GenerationRequest], lists: PromptLists) -> None:
        self._generator = generator
        self._waiting = deque(requests)
        self._lists = lists
        lists.add(self)
        self._since = time.monotonic()
        self.streams: list[_OutputStream] = []  # in the order of the prompts
        self._ahead: set[int] = set()  # prompts that have begun and have no output yet
        try:
            self._begin_first()
            self.begin_more()
        except BaseException:
            self.close()
            raise

    @property
    def has_waiting(self) -> bool:
        """Whether prompts are left to begin."""
        return bool(self._waiting)

    def begin_more(self, *, is_alone: bool = False) -> list[tuple[int, _OutputStream]]:
        """Begin as many as have a place now; returns them with their prompts.

        Raises QueueFull when no place is free, and NotReady without an engine, where ours are `is_alone`: then none of
        them will end and change that.
        """
        begun: list[tuple[int, _OutputStream]] = []
        while self._waiting and len(self._ahead) < self._lists.max_ahead():
            try:
                self._begin_first()
            except (QueueFull, NotReady):
                if is_alone and not begun:
                    raise
                break
            begun.append((len(self.streams) - 1, self.streams[-1]))
        return begun

    def close(self) -> None:
        """Begin no more: the error that ends a request may keep it for a while."""
        self._waiting.clear()

    def has_output(self, prompt: int) -> None:
        """Note that a prompt does not wait for its first output."""
        self._ahead.discard(prompt)

    def _begin_first(self) -> None:
        request = self._waiting[0]
        if request.timeout_s is not None and self.streams:
            request = replace(request, timeout_s=max(0.0, request.timeout_s - (time.monotonic() - self._since)))
        # TextGenerator promises that closing the iterator aborts the request, so it can be closed.
        self.streams.append(cast(_OutputStream, self._generator.generate(request)))
        self._waiting.popleft()
        self._ahead.add(len(self.streams) - 1)


async def _outputs_of_one(stream: _OutputStream) -> AsyncGenerator[PromptOutput, None]:
    async with aclosing(stream) as outputs:
        async for output in outputs:
            yield PromptOutput(0, output)


async def _outputs_of_all(batch: _Batch) -> AsyncGenerator[PromptOutput, None]:
    queue: _Outputs = asyncio.Queue(_MAX_OUTPUTS_AHEAD)
    tasks: list[asyncio.Task[None]] = []
    begun, num_running = list(enumerate(batch.streams)), 0
    try:
        while True:
            tasks += [asyncio.create_task(_feed(queue, stream, prompt)) for prompt, stream in begun]
            num_running += len(begun)
            if not num_running:
                return
            event = await queue.get()
            if isinstance(event, PromptOutput):
                batch.has_output(event.prompt)
                yield event
            elif event.error is not None:
                raise event.error
            else:
                batch.has_output(event.prompt)
                num_running -= 1
            begun = await _begin_more(batch, is_alone=not num_running)
    finally:
        batch.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _begin_more(batch: _Batch, *, is_alone: bool) -> list[tuple[int, _OutputStream]]:
    """Begin more prompts of a request that has begun, once there is an engine; raises NotReady if none comes."""
    latest = time.monotonic() + _ENGINE_WAIT_S
    while True:
        try:
            return batch.begin_more(is_alone=is_alone)
        except NotReady as error:
            if isinstance(error, ModelFilesGone) or time.monotonic() > latest:
                raise
        await asyncio.sleep(_ENGINE_POLL_S)


async def _feed(queue: _Outputs, stream: _OutputStream, prompt: int) -> None:
    try:
        async with aclosing(stream) as outputs:
            async for output in outputs:
                await queue.put(PromptOutput(prompt, output))
    except Exception as error:
        await queue.put(_PromptEnd(prompt, error))
    else:
        await queue.put(_PromptEnd(prompt))


def check_ended_well(completion: CompletionOutput) -> None:
    """Raise the error for a choice that was ended by anything but its own text."""
    match completion.finish_reason:
        case "error" if completion.error is not None:
            raise GenerationRefused(completion.error)
        case "error":
            raise RequestFailed(f"choice {completion.index} ended with an error")
        case "timeout":
            raise RequestTimedOut("The request's time ran out before its answer was complete.")
        case "abort":
            raise Unavailable("The service aborted this request.")
