"""Router's end of the connection to an engine in another process."""

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from rayinfer.errors import EngineDead, InvalidParameter, RequestFailed
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.outputs import StepMessage
from rayinfer.protocols import GenerationRequest
from rayinfer.transport.engine_certificate import client_context
from rayinfer.transport.engine_messages import (
    FROM_ENGINE,
    VERSION,
    Abort,
    CompileGrammar,
    EndOfOutputs,
    GrammarReply,
    RouterHello,
    Submit,
)
from rayinfer.transport.engine_server import Streams, TransportAddress
from rayinfer.wire import BadMessage, encode, read_messages


class EngineConnection:
    """One router's client of an engine for requests and tokens; connects on first use.

    A closed connection stays so: EngineDead everywhere.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[TransportAddress]],
        *,
        tls: ssl.SSLContext | None = None,
        limits: LivenessLimits = DEFAULT_LIMITS,
    ) -> None:
        """Take the function that finds the engine's address, which may raise EngineDead; `tls` is for engines without a
        certificate of their own."""
        self._find = find
        self._tls = tls
        self._timeout_s = limits.connect_timeout_s
        self._opening: asyncio.Task[Streams] | None = None
        self._has_ended = False
        self._numbers = itertools.count()
        self._compiling: dict[int, asyncio.Future[GrammarReply]] = {}  # by number of the call

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Send requests, without acknowledgement: unless a loss is reported, they have arrived."""
        self._send(await self._open(router_id), Submit(list(requests)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""
        if self._opening is not None:
            self._send(await asyncio.shield(self._opening), Abort(list(request_ids)))

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        """Wait until the engine has compiled a grammar, while `outputs` are read.

        Raises InvalidParameter for one that is refused, RequestFailed, EngineDead.
        """
        streams, number = await self._open(router_id), next(self._numbers)
        replied = self._compiling[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(streams, CompileGrammar(number, spec))
            reply = await replied
        finally:
            del self._compiling[number]
        if reply.refusal is not None:
            raise InvalidParameter(reply.refusal, "structured_outputs")
        if reply.failure is not None:
            raise RequestFailed(f"the engine failed to compile a grammar: {reply.failure}")

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield this router's messages; closing it disconnects, which aborts this router's requests."""
        try:
            reader, _ = await self._open(router_id)
            async for received in read_messages(reader, FROM_ENGINE):
                if isinstance(received, EndOfOutputs):
                    if received.reason:
                        raise EngineDead(received.reason)
                    return
                if isinstance(received, GrammarReply):
                    self._note_reply(received)
                else:
                    yield received.message
        except (BadMessage, OSError) as error:
            raise EngineDead(f"the connection to the engine broke ({type(error).__name__}: {error})") from None
        finally:
            self._close()
        raise EngineDead("the engine's process is gone: it has closed the connection")

    def _close(self) -> None:
        """Close the connection, also one that is still being opened."""
        self._has_ended = True
        for replied in self._compiling.values():
            if not replied.done():
                replied.set_exception(EngineDead("the connection to the engine has ended"))
        if self._opening is not None:
            self._opening.add_done_callback(_close_streams)

    def _note_reply(self, reply: GrammarReply) -> None:
        replied = self._compiling.get(reply.number)
        if replied is not None and not replied.done():
            replied.set_result(reply)

    def _send(self, streams: Streams, message: msgspec.Struct) -> None:
        writer = streams[1]
        if self._has_ended or writer.is_closing():
            raise EngineDead("the connection to the engine has ended")
        writer.write(encode(message))

    async def _open(self, router_id: str) -> Streams:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect(router_id))
        return await asyncio.shield(self._opening)

    async def _connect(self, router_id: str) -> Streams:
        try:
            address = await self._find()
        except EngineDead:
            raise
        except Exception as error:
            raise EngineDead(f"the engine's address is unknown ({type(error).__name__}: {error})") from None
        try:
            async with asyncio.timeout(self._timeout_s):
                tls = client_context(address.certificate) if address.certificate else self._tls
                tls_timeout_s = None if tls is None else self._timeout_s
                streams = await asyncio.open_connection(
                    address.host, address.port, ssl=tls, ssl_handshake_timeout=tls_timeout_s
                )
        except OSError as error:  # TimeoutError is one
            at = f"{address.host}:{address.port}"
            raise EngineDead(f"the engine cannot be reached at {at} ({type(error).__name__}: {error})") from None
        if not self._has_ended:
            self._send(streams, RouterHello(VERSION, address.key, router_id))
        return streams


def _close_streams(opening: asyncio.Task[Streams]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].close()
