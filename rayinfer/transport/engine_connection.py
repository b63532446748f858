"""The router's end of the connection to an engine in another process."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from rayinfer.errors import EngineDead
from rayinfer.outputs import StepMessage
from rayinfer.protocols import GenerationRequest
from rayinfer.transport.engine_server import TransportAddress
from rayinfer.transport.frames import (
    VERSION,
    AbortFrame,
    BadFrame,
    EndFrame,
    FromEngine,
    HelloFrame,
    SubmitFrame,
    encode_frame,
    read_frames,
)
from rayinfer.transport.line_certificate import client_context

CONNECT_WITHIN_S = 5.0

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EngineConnection:
    """One router's client of an engine for requests and tokens; connects on first use.

    A closed connection stays so: EngineDead everywhere.
    """

    def __init__(self, find: Callable[[], Awaitable[TransportAddress]], *, tls: ssl.SSLContext | None = None) -> None:
        """Take the function that finds the engine's address, which may raise EngineDead; `tls` is for engines without a
        certificate of their own."""
        self._find = find
        self._tls = tls
        self._opening: asyncio.Task[Line] | None = None
        self._has_ended = False

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Send requests, without acknowledgement: unless a loss is reported, they have arrived."""
        self._say(await self._open(router_id), SubmitFrame(list(requests)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""
        if self._opening is not None:
            self._say(await asyncio.shield(self._opening), AbortFrame(list(request_ids)))

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield this router's messages; closing it disconnects, which aborts this router's requests."""
        try:
            reader, _ = await self._open(router_id)
            async for frame in read_frames(reader, FromEngine):
                if isinstance(frame, EndFrame):
                    if frame.reason:
                        raise EngineDead(frame.reason)
                    return
                yield frame.message
        except (BadFrame, OSError) as error:
            raise EngineDead(f"the line to the engine broke ({type(error).__name__}: {error})") from None
        finally:
            self._hang_up()
        raise EngineDead("the engine's process is gone: it has hung up")

    def _hang_up(self) -> None:
        """Close the connection, also one that is still being opened."""
        self._has_ended = True
        if self._opening is not None:
            self._opening.add_done_callback(_close_line)

    def _say(self, line: Line, frame: msgspec.Struct) -> None:
        writer = line[1]
        if self._has_ended or writer.is_closing():
            raise EngineDead("the line to the engine has ended")
        writer.write(encode_frame(frame))

    async def _open(self, router_id: str) -> Line:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect(router_id))
        return await asyncio.shield(self._opening)

    async def _connect(self, router_id: str) -> Line:
        try:
            address = await self._find()
        except EngineDead:
            raise
        except Exception as error:
            raise EngineDead(f"nobody says where the engine listens ({type(error).__name__}: {error})") from None
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                tls = client_context(address.certificate) if address.certificate else self._tls
                limit_s = None if tls is None else CONNECT_WITHIN_S
                line = await asyncio.open_connection(address.host, address.port, ssl=tls, ssl_handshake_timeout=limit_s)
        except OSError as error:  # TimeoutError is one
            at = f"{address.host}:{address.port}"
            raise EngineDead(f"the engine cannot be reached at {at} ({type(error).__name__}: {error})") from None
        if not self._has_ended:
            self._say(line, HelloFrame(VERSION, address.key, router_id))
        return line


def _close_line(opening: asyncio.Task[Line]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].close()
