"""The engine's end of the line: listens for routers, takes their requests and sends them what each step says."""

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
import ssl
from dataclasses import dataclass, field

from rayinfer.errors import EngineDead
from rayinfer.protocols import EngineClient
from rayinfer.transport.frames import (
    MAX_HELLO_BYTES,
    VERSION,
    AbortFrame,
    BadFrame,
    EndFrame,
    FromRouter,
    HelloFrame,
    StepFrame,
    SubmitFrame,
    encode_frame,
    read_frame,
    read_frames,
)

logger = logging.getLogger(__name__)

HELLO_WITHIN_S = 10.0
GONE_AFTER_S = 20.0  # a router whose machine takes nothing for so long is gone, and its requests with it
KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportAddress:
    """Where an engine listens, and what opens its door."""

    host: str
    port: int
    key: bytes = field(repr=False)


class EngineServer:
    """Lets routers at one engine of this process; who does not know its key hears nothing and changes nothing.

    A router that goes, in whatever way, has its requests aborted at once, as closing `outputs` does.
    """

    def __init__(self, engine: EngineClient, *, tls: ssl.SSLContext | None = None) -> None:
        self._engine = engine
        self._tls = tls
        self._key = secrets.token_bytes(KEY_BYTES)
        self._lines: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str) -> TransportAddress:
        """Listen on a free port of one of this machine's addresses."""
        self._server = await asyncio.start_server(self._serve, host, 0, ssl=self._tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return TransportAddress(host=host, port=port, key=self._key)

    async def close(self, grace_s: float = 0.0) -> None:
        """Hang up, once routers have heard the last word of an engine that has ended, but within the grace."""
        if self._server is not None:
            self._server.close()
        if self._lines and grace_s:
            await asyncio.wait(self._lines, timeout=grace_s)
        for line in self._lines:
            line.cancel()
        if self._lines:
            await asyncio.wait(self._lines)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)
        try:
            router_id = await self._greet(reader, writer)
            if router_id is not None:
                await self._keep_up(router_id, reader, writer)
        except (BadFrame, OSError) as error:
            logger.warning("the line to a router ends: %s: %s", type(error).__name__, error)
        except asyncio.CancelledError:
            pass  # the server closes; asyncio would log it as an error
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        """Wait until the other end has shown who it is; None if it is nobody to talk to."""
        async with asyncio.timeout(HELLO_WITHIN_S):
            hello = await read_frame(reader, FromRouter, MAX_HELLO_BYTES)
        if not isinstance(hello, HelloFrame) or not hmac.compare_digest(hello.key, self._key):
            logger.warning("somebody without the key is turned away")
            return None
        if hello.version != VERSION:
            writer.write(encode_frame(EndFrame(f"it speaks version {VERSION} of the line, not {hello.version}")))
            return None
        _notice_silence(writer)
        return hello.router_id

    async def _keep_up(self, router_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Do what the router asks until it goes, and tell it meanwhile what the engine says."""
        telling = asyncio.get_running_loop().create_task(self._tell(router_id, writer))
        try:
            async for frame in read_frames(reader, FromRouter):
                if isinstance(frame, SubmitFrame):
                    await self._engine.submit(frame.requests, router_id)
                elif isinstance(frame, AbortFrame):
                    await self._engine.abort(frame.request_ids)
        except EngineDead:
            await telling  # it tells why
        finally:
            telling.cancel()
            await asyncio.wait((telling,))
            if not telling.cancelled() and (error := telling.exception()) is not None:
                logger.error("what the engine says could not be sent", exc_info=error)

    async def _tell(self, router_id: str, writer: asyncio.StreamWriter) -> None:
        try:
            async with contextlib.aclosing(self._engine.outputs(router_id)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    writer.write(encode_frame(StepFrame(message)))
                    await writer.drain()  # while a router is behind, the engine's messages to it become one
            writer.write(encode_frame(EndFrame("")))
        except EngineDead as error:
            writer.write(encode_frame(EndFrame(str(error))))
        except OSError:
            pass  # whoever reads hears of it
        finally:
            writer.close()  # and with it ends what is read


def _notice_silence(writer: asyncio.StreamWriter) -> None:
    """Have the system end a connection whose other machine has vanished: an idle engine says something every second."""
    connection = writer.get_extra_info("socket")
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * GONE_AFTER_S))
