"""Two machines' block stores with a server and an agent between them, and a relay that harms what passes."""

import contextlib
import socket
import threading
import time

from rayinfer.kv_transfer.block_server import BlockServer
from rayinfer.kv_transfer.fetcher import BlockFetcher
from rayinfer.kv_transfer.limits import TransferLimits
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.kv_transfer.tcp_agent import TcpTransferAgent
from rayinfer.kv_transfer.transfer_agent import PeerAddress
from support.fakes.fake_blocks import name_of, open_slots, put

HOST = "127.0.0.1"
IDENTITY = b"m" * 32


def filled_store(path, num_blocks, num_slots=None):
    """A chain of so many blocks."""
    slots = open_slots(path, num_slots or num_blocks + 1)
    stamp = time.time_ns()
    for number in range(num_blocks):
        assert put(slots, number, number - 1 if number else None, stamp - number)
    return slots


def names(count):
    return [name_of(number) for number in range(count)]


@contextlib.contextmanager
def serving(slots, *, tls=None, identity=IDENTITY, **limits):
    """A server of a store; yields it and its address."""
    server = BlockServer(StoredBlocks(identity, slots), tls=tls, limits=TransferLimits(**limits))
    try:
        yield server, PeerAddress(host=HOST, port=server.start(HOST), key=server.key)
    finally:
        server.close()


@contextlib.contextmanager
def fetching(slots, *, identity=IDENTITY, make_tls=None, **limits):
    """A fetcher into a store."""
    bounds = TransferLimits(**limits)
    settings = {} if make_tls is None else {"make_tls": make_tls}
    blocks = StoredBlocks(identity, slots)
    fetcher = BlockFetcher(TcpTransferAgent(identity, blocks.block_bytes, limits=bounds, **settings), blocks, bounds)
    try:
        yield fetcher
    finally:
        fetcher.close()


class Relay:
    """Network between an agent and a server, which harms the server's bytes after so many of them."""

    def __init__(self, port, *, cut_after=None, spoil_at=None, stop_after=None, pause_s=0.0):
        self._target, self._cut, self._spoil, self._stop, self._pause_s = port, cut_after, spoil_at, stop_after, pause_s
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.num_passed = 0
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                agent, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._target))
                self._open += [agent, server]
                threading.Thread(target=self._forward, args=(agent, server), daemon=True).start()
                threading.Thread(target=self._harm, args=(server, agent), daemon=True).start()

    def _forward(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _harm(self, source, target):
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(4000)):
                start, self.num_passed = self.num_passed, self.num_passed + len(data)
                if self._spoil is not None and start <= self._spoil < self.num_passed:
                    data[self._spoil - start] ^= 1
                if self._stop is not None and self.num_passed > self._stop:
                    return  # and leaves the connection open
                if self._cut is not None and self.num_passed > self._cut:
                    target.sendall(data[: max(0, self._cut - start)])
                    target.shutdown(socket.SHUT_RDWR)  # to close it would not, while another thread reads from it
                    return
                if self._pause_s:
                    time.sleep(self._pause_s)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
