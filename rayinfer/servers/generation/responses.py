"""Responses that generate while they are sent: they own the generation, and end it when the client leaves."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from types import MappingProxyType
from typing import Any, Protocol

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from rayinfer.error_kinds import error_kind
from rayinfer.errors import RequestFailed
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.generation.run_until_disconnect import run_until_disconnect
from rayinfer.servers.generation.server_sent_events import EVENT_HEADERS, EVENT_STREAM, KEEP_ALIVE

KEEP_ALIVE_CHECK_S = 5.0  # after two to three of these without output, a stream sends a comment

logger = logging.getLogger(__name__)

Outputs = AsyncGenerator[PromptOutput, None]


class OutputCollector(Protocol):
    """A protocol's collector of all outputs of a request that is answered in one piece."""

    @property
    def is_long(self) -> bool:
        """Whether it takes so long to encode that other requests should not wait for it."""
        ...

    def add(self, prompt_output: PromptOutput) -> object:
        """Add an output; raises the error of a choice that failed."""
        ...


class StreamWriter(Protocol):
    """A protocol's encoder of a stream: opening, then a write per output, then ending or failure."""

    @property
    def has_slow_opening(self) -> bool:
        """Whether the opening takes milliseconds to encode."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether the next output takes milliseconds to encode."""
        ...

    def opening(self) -> bytes:
        """Encode what precedes the first output."""
        ...

    def write(self, prompt_output: PromptOutput) -> bytes:
        """Encode an output, which may be nothing yet; raises the error of a choice that failed."""
        ...

    def ending(self) -> bytes:
        """Encode the end; raises RequestFailed when choices have not ended."""
        ...

    def failure(self, error: BaseException) -> bytes:
        """Encode an error that ended the stream after its first output."""
        ...


class WholeResponse(Response):
    """Waits for all outputs and answers with one JSON body."""

    def __init__(
        self,
        outputs: Outputs,
        aggregate: OutputCollector,
        body: Callable[[], Any],
        final_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        super().__init__()
        self._outputs = outputs
        self._aggregate = aggregate
        self._body = body
        self._final_headers = final_headers  # known when all outputs are there

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate, then send; errors escape to the application's handlers, as nothing was sent yet."""
        await run_until_disconnect(receive, self._respond(scope, receive, send))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._outputs) as outputs:
            async for output in outputs:
                self._aggregate.add(output)
        body = await asyncio.to_thread(self._encode) if self._aggregate.is_long else self._encode()
        await json_response(body, headers=self._final_headers())(scope, receive, send)

    def _encode(self) -> bytes:
        return json.dumps(self._body(), ensure_ascii=False).encode(errors="replace")


class StreamedResponse(Response):
    """Sends every output as soon as it is there, as server-sent events or lines of another type.

    While there is none for long, comments, or what `keep_alive` returns, keep proxies and clients from taking the
    stream for dead.
    """

    def __init__(
        self,
        outputs: Outputs,
        writer: StreamWriter,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        keep_alive_check_s: float = KEEP_ALIVE_CHECK_S,
        media_type: str = EVENT_STREAM,
        keep_alive: Callable[[], bytes] = lambda: KEEP_ALIVE,
    ) -> None:
        super().__init__(headers={**EVENT_HEADERS, **headers, "Content-Type": media_type})
        del self.headers["content-length"]
        self._outputs = outputs
        self._writer = writer
        self._keep_alive_check_s = keep_alive_check_s
        self._keep_alive = keep_alive
        self._num_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the first output, whose errors escape to the application's handlers, then stream."""
        await run_until_disconnect(receive, self._respond(send))

    async def _respond(self, send: Send) -> None:
        async with aclosing(self._outputs) as outputs:
            first = await anext(outputs, None)
            if first is None:
                raise RequestFailed("the generator gave no output at all")
            is_slow = self._writer.has_slow_opening
            opening = await asyncio.to_thread(self._writer.opening) if is_slow else self._writer.opening()
            opening += await self._write(first)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": opening, "more_body": True})
            async with self._kept_alive(send):
                async for events in self._later_events(outputs):
                    self._num_sent += 1
                    await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @asynccontextmanager
    async def _kept_alive(self, send: Send) -> AsyncIterator[None]:
        """Send comments during long silences, beside the events, while the block lasts."""
        task = asyncio.create_task(self._send_comments(send))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_comments(self, send: Send) -> None:
        num_known, is_silent = self._num_sent, False
        while True:
            await asyncio.sleep(self._keep_alive_check_s)
            if self._num_sent != num_known:
                num_known, is_silent = self._num_sent, False
            elif is_silent:
                await send({"type": "http.response.body", "body": self._keep_alive(), "more_body": True})
                is_silent = False
            else:
                is_silent = True

    async def _later_events(self, outputs: Outputs) -> AsyncIterator[bytes]:
        try:
            async for output in outputs:
                if events := await self._write(output):
                    yield events
            yield self._writer.ending()
        except Exception as error:  # the status is sent: the error becomes an event
            if error_kind(error).status == 500:
                logger.exception("a stream failed after its first output")
            yield self._writer.failure(error)

    async def _write(self, output: PromptOutput) -> bytes:
        if output.output.prompt_logprobs is None and not self._writer.is_slow:
            return self._writer.write(output)
        return await asyncio.to_thread(self._writer.write, output)  # a whole prompt may take its time
