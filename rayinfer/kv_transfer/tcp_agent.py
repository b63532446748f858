"""TransferAgent over TCP: a thread and a connection for each peer."""

import contextlib
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rayinfer.kv_store.store import BlockName
from rayinfer.kv_transfer.limits import DEFAULT_TRANSFER_LIMITS, TransferLimits
from rayinfer.kv_transfer.messages import (
    BLOCK_HEADER,
    FROM_SERVER,
    MAX_READ_BLOCKS,
    VERSION,
    BlockHeader,
    Hello,
    Read,
    block_digest,
    receive,
    receive_into,
)
from rayinfer.kv_transfer.transfer_agent import (
    LocalDescriptor,
    MemoryRegion,
    PeerAddress,
    TransferRequest,
    TransferState,
)
from rayinfer.wire import MAX_HELLO_BYTES, BadMessage, encode

_CLOSE_S = 5.0  # for threads to notice

MakeTls = Callable[[str], ssl.SSLContext | None]  # from a peer's certificate, which may be empty


def plain_unless_certified(certificate: str) -> ssl.SSLContext | None:
    """Make no TLS context, for peers without a certificate."""
    if certificate:
        raise ValueError("an agent without TLS cannot reach a peer with a certificate")
    return None


class TcpTransferAgent:
    """See TransferAgent. Blocks are received straight into the memory that was registered for them."""

    def __init__(
        self,
        identity: bytes,
        block_bytes: int,
        *,
        make_tls: MakeTls = plain_unless_certified,
        limits: TransferLimits = DEFAULT_TRANSFER_LIMITS,
    ) -> None:
        self._hello = (identity, block_bytes)
        self._block_bytes = block_bytes
        self._make_tls = make_tls
        self._limits = limits
        self._changed = threading.Condition()
        self._regions: set[MemoryRegion] = set()
        self._peers: dict[PeerAddress, _Peer] = {}

    def register_memory(self, memory: memoryview) -> MemoryRegion:
        """Prepare memory for transfers."""
        region = MemoryRegion(memory)
        self._regions.add(region)
        return region

    def deregister_memory(self, region: MemoryRegion) -> None:
        """End its use."""
        self._regions.remove(region)

    def initialize_transfer(
        self,
        local: Sequence[LocalDescriptor],
        names: Sequence[BlockName],
        peer: PeerAddress,
        *,
        wait_s: float,
        timeout_s: float,
    ) -> TransferRequest:
        """Describe a read; raises ValueError where blocks do not fit the memory."""
        if len(local) != len(names) or len(names) > MAX_READ_BLOCKS:
            raise ValueError(f"{len(names)} blocks for {len(local)} places, at most {MAX_READ_BLOCKS}")
        for place in local:
            is_inside = 0 <= place.offset <= len(place.region.memory) - self._block_bytes
            if place.region not in self._regions or not is_inside:
                raise ValueError(f"no registered memory for a block of {self._block_bytes} bytes at {place.offset}")
        return TransferRequest(peer=peer, names=names, local=local, wait_s=wait_s, timeout_s=timeout_s)

    def post(self, request: TransferRequest) -> None:
        """Start a transfer; it fails where too many peers are connected."""
        with self._changed:
            self._peers = {address: peer for address, peer in self._peers.items() if not peer.has_ended}
            peer = self._peers.get(request.peer)
            if peer is None:
                if len(self._peers) >= self._limits.max_peers:
                    request.state, request.failure = TransferState.FAILED, "too many peers are connected"
                    self._changed.notify_all()
                    return
                peer = self._peers[request.peer] = _Peer(request.peer, self._changed, self._run)
            request.state = TransferState.IN_PROGRESS
            peer.queue.append((request, time.monotonic() + request.timeout_s))
            self._changed.notify_all()

    def poll(self, request: TransferRequest) -> TransferState:
        """Return how far a transfer is."""
        return request.state

    def wait(self, request: TransferRequest, num_blocks: int, timeout_s: float) -> int:
        """Wait until so many blocks have arrived or the transfer has ended; returns how many have arrived."""
        with self._changed:
            self._changed.wait_for(lambda: request.num_blocks >= num_blocks or request.has_ended, timeout_s)
            return request.num_blocks

    def release(self, request: TransferRequest) -> None:
        """End a transfer, with the peer's connection if that is in the middle of it."""
        with self._changed:
            peer = self._peers.get(request.peer)
            if peer is None or request.has_ended or request.state is TransferState.INITIALIZED:
                return
            if peer.current is request:
                peer.end_connection()
            else:
                peer.queue = deque(each for each in peer.queue if each[0] is not request)
                request.state, request.failure = TransferState.FAILED, "released"
                return
            self._changed.wait_for(lambda: request.has_ended)

    def close(self) -> None:
        """End all transfers and connections."""
        with self._changed:
            peers = list(self._peers.values())
            for peer in peers:
                peer.is_closed = True
                peer.end_connection()
            self._changed.notify_all()
        for peer in peers:
            peer.thread.join(_CLOSE_S)

    def _run(self, peer: "_Peer") -> None:
        """Make a peer's transfers until none has come for a while."""
        try:
            while (taken := self._next(peer)) is not None:
                request, deadline = taken
                failure = self._attempt(peer, request, deadline)
                with self._changed:
                    peer.current = None
                    request.failure = failure
                    request.state = TransferState.FAILED if failure else TransferState.DONE
                    self._changed.notify_all()
        finally:
            with self._changed:
                peer.has_ended = True
                peer.disconnect()
                left = [request for request, _ in peer.queue] + ([peer.current] if peer.current else [])
                for request in left:
                    request.state, request.failure = TransferState.FAILED, "the agent has closed"
                self._changed.notify_all()

    def _next(self, peer: "_Peer") -> tuple[TransferRequest, float] | None:
        with self._changed:
            has_work = self._changed.wait_for(lambda: peer.queue or peer.is_closed, self._limits.idle_timeout_s / 2)
            if peer.is_closed or not has_work:
                peer.has_ended = True  # before another request can be queued
                return None
            request, deadline = peer.queue.popleft()
            peer.current, peer.is_released = request, False
            return request, deadline

    def _attempt(self, peer: "_Peer", request: TransferRequest, deadline: float) -> str:
        """Make one transfer; returns why it failed. A connection that breaks before a block came is opened again."""
        was_connected = peer.connection is not None
        try:
            return self._receive(peer, request, deadline)
        except (BadMessage, OSError, ValueError) as error:
            peer.disconnect()
            failure = f"{type(error).__name__}: {error}"
            # The peer closes connections that were idle for long, and one of them may be found closed.
            if not was_connected or request.num_blocks or peer.is_released or isinstance(error, TimeoutError):
                return failure
        try:
            return self._receive(peer, request, deadline)
        except (BadMessage, OSError, ValueError) as error:
            peer.disconnect()
            return f"{type(error).__name__}: {error}"

    def _receive(self, peer: "_Peer", request: TransferRequest, deadline: float) -> str:
        connection = peer.connection
        if connection is None:
            connection = self._connect(peer, min(deadline, time.monotonic() + self._limits.connect_timeout_s))
        keys, contents = [name.key for name in request.names], [name.content for name in request.names]
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        connection.sendall(encode(Read(keys, contents, request.wait_s)))
        packed = bytearray(BLOCK_HEADER.size)
        for name, place in zip(request.names, request.local, strict=True):
            receive_into(connection, memoryview(packed), deadline)
            header = BlockHeader(*BLOCK_HEADER.unpack(packed))
            if not header.is_there:
                return ""
            block = place.region.memory[place.offset : place.offset + self._block_bytes]
            receive_into(connection, block, deadline)
            if block_digest(name, block) != header.digest:
                request.num_damaged += 1
                peer.disconnect()
                return "a block arrived damaged"
            with self._changed:
                request.num_blocks += 1
                self._changed.notify_all()
        return ""

    def _connect(self, peer: "_Peer", deadline: float) -> socket.socket:
        address, (identity, block_bytes) = peer.address, self._hello
        left_s = max(0.001, deadline - time.monotonic())
        connection = socket.create_connection((address.host, address.port), timeout=left_s)
        try:
            tls = self._make_tls(address.certificate)
            if tls is not None:
                connection = tls.wrap_socket(connection)
            connection.sendall(encode(Hello(VERSION, address.key, identity, block_bytes)))
            answer = receive(connection, FROM_SERVER, MAX_HELLO_BYTES, deadline)
            if answer is None or answer.reason:
                raise ConnectionError("it was refused" if answer is None else f"it was refused: {answer.reason}")
        except BaseException:
            connection.close()
            raise
        with self._changed:
            if peer.is_released or peer.is_closed:
                connection.close()
                raise ConnectionError("released")
            peer.connection = connection
        return connection


class _Peer:
    """One peer: its connection, and the transfers that wait for it. Changed under the agent's lock only."""

    def __init__(self, address: PeerAddress, lock: threading.Condition, run: Callable[["_Peer"], None]) -> None:
        self.address = address
        self.queue: deque[tuple[TransferRequest, float]] = deque()
        self.current: TransferRequest | None = None
        self.connection: socket.socket | None = None
        self.is_released = False  # the current transfer
        self.is_closed = self.has_ended = False
        self._lock = lock
        self.thread = threading.Thread(target=run, args=(self,), name="kv-transfer", daemon=True)
        self.thread.start()

    def end_connection(self) -> None:
        """Wake the thread that reads from the connection, which closes it."""
        self.is_released = True
        if self.connection is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.connection, socket.SHUT_RDWR)  # beneath TLS, which another thread reads

    def disconnect(self) -> None:
        """Close the connection."""
        with self._lock:
            if self.connection is not None:
                self.connection.close()
                self.connection = None
