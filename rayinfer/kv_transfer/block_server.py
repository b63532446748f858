"""Server of a machine's KV blocks for engines on other machines, in threads of an engine's process."""

import contextlib
import hmac
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable

from rayinfer.kv_transfer.limits import DEFAULT_TRANSFER_LIMITS, TransferLimits
from rayinfer.kv_transfer.messages import (
    BLOCK_HEADER,
    FROM_AGENT,
    MAX_READ_BYTES,
    VERSION,
    Answer,
    Hello,
    Read,
    block_digest,
    checked_names,
    receive,
)
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.outputs import KVTransferStats
from rayinfer.wire import MAX_HELLO_BYTES, BadMessage, encode

_logger = logging.getLogger(__name__)

_KEY_BYTES = 32
_ACCEPT_PAUSE_S = 0.1  # while the process may open no further socket
_CLOSE_S = 5.0  # for threads to notice


class BlockServer:
    """Sends verified blocks to peers that show the key; others receive nothing.

    Each connection has a thread and a buffer of one block. None of them touches an engine's steps or its pool.
    """

    def __init__(
        self,
        blocks: StoredBlocks,
        *,
        tls: ssl.SSLContext | None = None,
        limits: TransferLimits = DEFAULT_TRANSFER_LIMITS,
        stats: KVTransferStats | None = None,
    ) -> None:
        self.key = secrets.token_bytes(_KEY_BYTES)
        self.stats = KVTransferStats() if stats is None else stats
        self._blocks = blocks
        self._tls = tls
        self._limits = limits
        self._lock = threading.Lock()
        self._unauthenticated: dict[threading.Thread, socket.socket] = {}  # oldest first
        self._authenticated: dict[threading.Thread, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._is_closed = False

    def start(self, host: str) -> int:
        """Listen on a free port of one of this machine's addresses; returns the port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._accepting = threading.Thread(target=self._accept, name="kv-server", daemon=True)
        self._accepting.start()
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """End all connections."""
        self._is_closed = True
        if self._listener is not None:
            _end(self._listener)
        with self._lock:
            connections = {**self._unauthenticated, **self._authenticated}
        for connection in connections.values():
            _end(connection)
        for thread in (self._accepting, *connections):
            if thread is not None:
                thread.join(_CLOSE_S)

    @property
    def num_connections(self) -> int:
        """Connections, those without the key included."""
        return len(self._unauthenticated) + len(self._authenticated)

    def _accept(self) -> None:
        assert self._listener is not None
        with self._listener:
            while not self._is_closed:
                try:
                    connection, _ = self._listener.accept()
                except OSError as error:
                    if not self._is_closed:  # too many open files, or a client that has gone again
                        _logger.warning("no connection for KV blocks could be accepted: %s", error)
                        time.sleep(_ACCEPT_PAUSE_S)
                    continue
                thread = threading.Thread(target=self._run, args=(connection,), name="kv-server", daemon=True)
                with self._lock:
                    if len(self._unauthenticated) >= self._limits.max_unauthenticated:
                        oldest = next(iter(self._unauthenticated))
                        _end(self._unauthenticated.pop(oldest))
                    self._unauthenticated[thread] = connection
                thread.start()

    def _run(self, connection: socket.socket) -> None:
        try:
            with self._wrapped(connection) as wrapped:
                self._serve(wrapped)
        except (BadMessage, OSError) as error:
            if not self._is_closed:
                _logger.info("a connection for KV blocks ends: %s: %s", type(error).__name__, error)
        except Exception:
            if not self._is_closed:
                _logger.exception("a connection for KV blocks failed")
        finally:
            connection.close()
            with self._lock:
                self._unauthenticated.pop(threading.current_thread(), None)
                self._authenticated.pop(threading.current_thread(), None)

    def _wrapped(self, connection: socket.socket) -> socket.socket:
        connection.settimeout(self._limits.hello_timeout_s)
        if self._tls is None:
            return connection
        wrapped = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            if threading.current_thread() in self._unauthenticated:
                self._unauthenticated[threading.current_thread()] = wrapped
            else:
                wrapped.close()
        wrapped.do_handshake()
        return wrapped

    def _serve(self, connection: socket.socket) -> None:
        hello = receive(connection, FROM_AGENT, MAX_HELLO_BYTES, time.monotonic() + self._limits.hello_timeout_s)
        if not isinstance(hello, Hello) or not hmac.compare_digest(hello.key, self.key):
            raise BadMessage("a peer without the key")
        reason = self._admit(connection, hello)
        connection.sendall(encode(Answer(reason)))
        if reason:
            return
        frame = bytearray(BLOCK_HEADER.size + self._blocks.block_bytes)
        while not self._is_closed:
            deadline = time.monotonic() + self._limits.idle_timeout_s
            read = receive(connection, FROM_AGENT, MAX_READ_BYTES, deadline)
            if not isinstance(read, Read):
                return
            connection.settimeout(self._limits.send_timeout_s)  # of each block
            self._send_blocks(read, frame, connection.sendall)

    def _admit(self, connection: socket.socket, hello: Hello) -> str:
        """Count an authenticated peer; returns the reason where it is not served."""
        if hello.version != VERSION:
            return f"version {VERSION} is spoken here, not {hello.version}"
        if hello.identity != self._blocks.identity or hello.block_bytes != self._blocks.block_bytes:
            return "blocks of other weights or settings"
        with self._lock:
            if len(self._authenticated) >= self._limits.max_connections:
                return f"{self._limits.max_connections} peers are connected"
            if self._unauthenticated.pop(threading.current_thread(), None) is None:
                return "a newer connection took its place"
            self._authenticated[threading.current_thread()] = connection
        return ""

    def _send_blocks(self, read: Read, frame: bytearray, send: Callable[[bytearray | bytes], None]) -> None:
        block = memoryview(frame)[BLOCK_HEADER.size :]
        deadline = time.monotonic() + min(max(0.0, read.wait_s), self._limits.max_wait_s)
        for name in checked_names(read):
            if not self._blocks.read_within(name, block, min(deadline, time.monotonic() + self._limits.stall_s)):
                send(BLOCK_HEADER.pack(False, b""))
                return
            BLOCK_HEADER.pack_into(frame, 0, True, block_digest(name, block))
            self.stats.sent_blocks_total += 1  # before the peer may see the block
            send(frame)


def _end(connection: socket.socket) -> None:
    """Wake the thread that reads from a connection or accepts some."""
    with contextlib.suppress(OSError):  # it may have ended
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # beneath TLS, which another thread may read
