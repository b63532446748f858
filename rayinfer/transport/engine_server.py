"""Engine's end of the connections to routers: takes their requests and sends each step's results."""

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
import ssl
from dataclasses import dataclass, field

from rayinfer.errors import EngineDead, InvalidParameter
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.protocols import EngineClient, KVAddress
from rayinfer.transport.engine_certificate import EngineCertificate
from rayinfer.transport.engine_messages import (
    FROM_ROUTER,
    VERSION,
    Abort,
    CompileGrammar,
    EndOfOutputs,
    GrammarReply,
    RouterHello,
    StepOutputs,
    Submit,
)
from rayinfer.wire import MAX_HELLO_BYTES, BadMessage, encode, read_message, read_messages

logger = logging.getLogger(__name__)

MAX_UNAUTHENTICATED = 64
BACKLOG = 128
ACCEPT_PAUSE_S = 0.1  # while the process may open no further socket
KEY_BYTES = 32

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportAddress:
    """An engine's address, and the key and certificate to connect with."""

    host: str
    port: int
    key: bytes = field(repr=False)
    certificate: str = field(default="", repr=False)  # the engine's own, where it has one: it speaks TLS then
    kv_address: KVAddress | None = None  # of the same process, where it serves KV blocks to engines


class EngineServer:
    """Server of one engine for routers; peers without its key receive nothing and change nothing.

    Connections are plain unless it is given `tls`, which both ends know, or a certificate of the engine's own.
    A router that disconnects, in whatever way, has its requests aborted at once, as closing `outputs` does.
    """

    def __init__(
        self,
        engine: EngineClient,
        *,
        tls: ssl.SSLContext | None = None,
        certificate: EngineCertificate | None = None,
        limits: LivenessLimits = DEFAULT_LIMITS,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
    ) -> None:
        self._engine = engine
        self._tls = tls if certificate is None else certificate.server_context()
        self.certificate = "" if certificate is None else certificate.certificate  # PEM
        self._limits = limits
        self._key = secrets.token_bytes(KEY_BYTES)
        self._connections: set[asyncio.Task[None]] = set()
        self._unauthenticated = _UnauthenticatedConnections(max_unauthenticated)
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
        if self._connections and grace_s:
            await asyncio.wait(self._connections, timeout=grace_s)
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections for as long as the server is open; they count as unauthenticated from here on."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError as error:  # too many open files, or a client that has gone again
                    logger.warning("no connection could be accepted: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                connection = loop.create_task(self._serve(accepted))
                self._connections.add(connection)
                connection.add_done_callback(self._connections.discard)
                self._unauthenticated.add(connection)
                await asyncio.sleep(0)  # a connection that waits already is accepted without a pause

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._limits.server_hello_timeout_s):
                reader, writer = await self._open(accepted)
                hello = await self._authenticate(reader, writer)
            if hello is None:
                return
            try:
                await self._serve_router(hello, reader, writer)
            finally:
                writer.close()
        except (BadMessage, OSError) as error:
            logger.warning("the connection to a router ends: %s: %s", type(error).__name__, error)
        except asyncio.CancelledError:
            pass  # the server closes, or a newer connection replaced this one; asyncio would log it as an error

    async def _open(self, accepted: socket.socket) -> Streams:
        """Make streams of a connection, after the TLS handshake where there is one."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        tls_timeout_s = None if self._tls is None else self._limits.server_hello_timeout_s
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=tls_timeout_s
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _authenticate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RouterHello | None:
        """Wait until the other end has shown the key; None, with the connection aborted, if it sends anything else."""
        is_authentic = False
        try:
            hello = await read_message(reader, FROM_ROUTER, MAX_HELLO_BYTES)
            is_authentic = isinstance(hello, RouterHello) and hmac.compare_digest(hello.key, self._key)
        finally:
            if not is_authentic:
                writer.transport.abort()  # with TLS, to close would wait for the other end's consent
        if not is_authentic:
            logger.warning("a client without the key is rejected")
            return None
        self._unauthenticated.remove(_current_task())
        assert isinstance(hello, RouterHello)
        return hello

    async def _serve_router(
        self, hello: RouterHello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve the router's requests until it disconnects, and send it the engine's messages."""
        if hello.version != VERSION:
            reason = f"the engine speaks version {VERSION} of the protocol, not {hello.version}"
            writer.write(encode(EndOfOutputs(reason)))
            return
        self._bound_unacknowledged(writer)
        router_id = hello.router_id
        loop = asyncio.get_running_loop()
        sending = loop.create_task(self._send_outputs(router_id, writer))
        compiling: set[asyncio.Task[None]] = set()
        try:
            async for message in read_messages(reader, FROM_ROUTER):
                if isinstance(message, Submit):
                    await self._engine.submit(message.requests, router_id)
                elif isinstance(message, Abort):
                    await self._engine.abort(message.request_ids)
                elif isinstance(message, CompileGrammar):
                    task = loop.create_task(self._compile(message, router_id, writer))
                    compiling.add(task)
                    task.add_done_callback(compiling.discard)
        except EngineDead:
            await sending  # it sends the cause
        finally:
            for task in compiling:
                task.cancel()
            sending.cancel()
            await asyncio.wait((sending,))
            if not sending.cancelled() and (error := sending.exception()) is not None:
                logger.error("the engine's outputs could not be sent", exc_info=error)

    async def _compile(self, message: CompileGrammar, router_id: str, writer: asyncio.StreamWriter) -> None:
        refusal = failure = None
        try:
            await self._engine.compile_grammar(message.spec, router_id)
        except InvalidParameter as error:
            refusal = error.message
        except EngineDead:
            return  # the connection ends
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic of Rust's is no Exception
            logger.exception("a grammar could not be compiled")
            failure = type(error).__name__
        writer.write(encode(GrammarReply(message.number, refusal, failure)))

    async def _send_outputs(self, router_id: str, writer: asyncio.StreamWriter) -> None:
        try:
            async with contextlib.aclosing(self._engine.outputs(router_id)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    writer.write(encode(StepOutputs(message)))
                    await writer.drain()  # while a router is behind, the engine's messages to it become one
            writer.write(encode(EndOfOutputs("")))
        except EngineDead as error:
            writer.write(encode(EndOfOutputs(str(error))))
        except OSError:
            pass  # the reader gets the error
        finally:
            writer.close()  # which ends reading, too

    def _bound_unacknowledged(self, writer: asyncio.StreamWriter) -> None:
        """Have the system end a connection to a vanished machine: idle engines send a message every second."""
        connected = writer.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            timeout_ms = int(1e3 * self._limits.router_timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def _current_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


class _UnauthenticatedConnections:
    """At most so many connections whose other end has not shown the key: a new one beyond that ends the oldest.

    A router shows its key within milliseconds, so the peer that has waited longest is the least likely to be one.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._tasks: dict[asyncio.Task[None], None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Task[None]) -> None:
        """Count the task that serves a connection until it is removed or ends."""
        if len(self._tasks) >= self._max_connections:
            oldest = next(iter(self._tasks))
            self.remove(oldest)
            oldest.cancel()
        self._tasks[task] = None
        task.add_done_callback(self.remove)

    def remove(self, task: asyncio.Task[None]) -> None:
        """Stop counting a connection: its other end has shown the key, or it has ended."""
        self._tasks.pop(task, None)
