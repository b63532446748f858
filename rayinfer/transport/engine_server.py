"""The engine's end of the connection: takes routers' requests and sends them each step's results."""

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
from rayinfer.transport.line_certificate import LineCertificate
from rayinfer.transport.unauthenticated_lines import UnauthenticatedLines

logger = logging.getLogger(__name__)

HELLO_WITHIN_S = 10.0  # TLS included
MAX_UNAUTHENTICATED_LINES = 64
BACKLOG = 128
ACCEPT_PAUSE_S = 0.1  # while the process may open no further socket
GONE_AFTER_S = 20.0  # a router whose machine takes nothing for so long is gone, and its requests with it
KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportAddress:
    """An engine's address, and the key and certificate to connect with."""

    host: str
    port: int
    key: bytes = field(repr=False)
    certificate: str = field(default="", repr=False)  # the engine's own, where it has one: it speaks TLS then


class EngineServer:
    """Server of one engine for routers; peers without its key receive nothing and change nothing.

    The line is plain unless it is given `tls`, which both ends know, or a certificate of the engine's own.
    A router that goes, in whatever way, has its requests aborted at once, as closing `outputs` does.
    """

    def __init__(
        self, engine: EngineClient, *, tls: ssl.SSLContext | None = None, certificate: LineCertificate | None = None
    ) -> None:
        self._engine = engine
        self._tls = tls if certificate is None else certificate.server_context()
        self.certificate = "" if certificate is None else certificate.certificate  # PEM
        self._key = secrets.token_bytes(KEY_BYTES)
        self._lines: set[asyncio.Task[None]] = set()
        self._unauthenticated = UnauthenticatedLines(MAX_UNAUTHENTICATED_LINES)
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, host: str) -> TransportAddress:
        """Listen on a free port of one of this machine's addresses."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))
        port: int = listener.getsockname()[1]
        return TransportAddress(host=host, port=port, key=self._key, certificate=self.certificate)

    async def close(self, grace_s: float = 0.0) -> None:
        """Close, once routers have received the final message of an engine that has ended, but within the grace."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        if self._lines and grace_s:
            await asyncio.wait(self._lines, timeout=grace_s)
        for line in self._lines:
            line.cancel()
        if self._lines:
            await asyncio.wait(self._lines)

    async def _accept(self, listener: socket.socket) -> None:
        """Take connections for as long as the server is open; those without TLS and key count from here on."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # too many open files, or a client that has gone again
                    logger.warning("no connection could be accepted: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                line = loop.create_task(self._serve(connection))
                self._lines.add(line)
                line.add_done_callback(self._lines.discard)
                self._unauthenticated.add(line)
                await asyncio.sleep(0)  # a connection that waits already is accepted without a pause

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                reader, writer = await self._open(connection)
                hello = await self._authenticate(reader, writer)
            if hello is None:
                return
            try:
                await self._keep_up(hello, reader, writer)
            finally:
                writer.close()
        except (BadFrame, OSError) as error:
            logger.warning("the line to a router ends: %s: %s", type(error).__name__, error)
        except asyncio.CancelledError:
            pass  # the server closes, or others took this line's place; asyncio would log it as an error

    async def _open(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Make streams of a connection, once TLS is agreed on where it is spoken."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        limit_s = None if self._tls is None else HELLO_WITHIN_S
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=limit_s
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _authenticate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HelloFrame | None:
        """Wait until the other end has shown the key; None, and the connection is gone, if it shows something else."""
        is_authentic = False
        try:
            hello = await read_frame(reader, FromRouter, MAX_HELLO_BYTES)
            is_authentic = isinstance(hello, HelloFrame) and hmac.compare_digest(hello.key, self._key)
        finally:
            if not is_authentic:
                writer.transport.abort()  # with TLS, to close would wait for the other end's consent
        if not is_authentic:
            logger.warning("somebody without the key is turned away")
            return None
        self._unauthenticated.remove(_this_task())
        assert isinstance(hello, HelloFrame)
        return hello

    async def _keep_up(self, hello: HelloFrame, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the router's requests until it disconnects, and send it the engine's messages."""
        if hello.version != VERSION:
            writer.write(encode_frame(EndFrame(f"it speaks version {VERSION} of the line, not {hello.version}")))
            return
        _notice_silence(writer)
        router_id = hello.router_id
        telling = asyncio.get_running_loop().create_task(self._tell(router_id, writer))
        try:
            async for frame in read_frames(reader, FromRouter):
                if isinstance(frame, SubmitFrame):
                    await self._engine.submit(frame.requests, router_id)
                elif isinstance(frame, AbortFrame):
                    await self._engine.abort(frame.request_ids)
        except EngineDead:
            await telling  # it sends the cause
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
            pass  # the reader gets the error
        finally:
            writer.close()  # and with it ends what is read


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _notice_silence(writer: asyncio.StreamWriter) -> None:
    """Have the system end a connection whose other machine has vanished: idle engines send a message every second."""
    connection = writer.get_extra_info("socket")
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * GONE_AFTER_S))
