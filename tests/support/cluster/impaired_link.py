"""A node's link that delays and drops packets, without the kernel's traffic control: a thread forwards Ethernet frames.

The node's end is taken off the bridge, and a second pair of interfaces takes its place there. Frames are read and
written by raw sockets.
"""

import array
import contextlib
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from support.cluster.node_network import BRIDGE, NodeNetwork

FRAME_BYTES = 65_600
ETH_P_ALL = 3
SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)  # checksums, TSO, GSO, GRO: frames have to be whole where they are read
PACKET_OUTGOING = 4
POLL_S = 0.2


@contextlib.contextmanager
def impaired(network: NodeNetwork, node: int, *, delay_s: float, loss: float) -> Iterator["FrameForwarder"]:
    """Delay every packet of a node, in both directions, and drop a share of them, while the block lasts."""
    outer, port = f"rayinfer-w{node}", f"rayinfer-x{node}"
    own = network.link(node)
    program = "from support.cluster.impaired_link import whole_frames; whole_frames('eth0')"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(network.inside(node, [sys.executable, "-c", program]), check=True, env=environment)
    for command in (
        f"link add {outer} type veth peer name {port}",
        f"link set {own} nomaster",
        f"link set {port} master {BRIDGE} up",
        f"link set {outer} up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    whole_frames(own)
    whole_frames(outer)
    whole_frames(port)
    whole_frames(BRIDGE)
    try:
        with FrameForwarder(own, outer, delay_s=delay_s, loss=loss) as forwarder:
            yield forwarder
    finally:
        subprocess.run(["ip", "link", "del", outer], check=True)
        subprocess.run(["ip", "link", "set", own, "master", BRIDGE], check=True)


class FrameForwarder:
    """Thread that forwards frames between two interfaces, late and not all of them."""

    def __init__(self, first: str, second: str, *, delay_s: float, loss: float) -> None:
        self.num_forwarded = self.num_dropped = 0
        self._sockets = [_raw_socket(first), _raw_socket(second)]
        self._delay_s = delay_s
        self._loss = loss
        self._random = random.Random(0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "FrameForwarder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _run(self) -> None:
        late: list[tuple[float, int, int, bytes]] = []  # when it is due, its number, the socket, the frame
        while not self._is_over.is_set():
            wait_s = max(0.0, late[0][0] - time.monotonic()) if late else POLL_S
            for ready in select.select(self._sockets, [], [], min(wait_s, POLL_S))[0]:
                frame, address = ready.recvfrom(FRAME_BYTES)
                if address[2] == PACKET_OUTGOING:
                    continue
                if self._random.random() < self._loss:
                    self.num_dropped += 1
                    continue
                other = 1 - self._sockets.index(ready)
                self.num_forwarded += 1
                heapq.heappush(late, (time.monotonic() + self._delay_s, self.num_forwarded, other, frame))
            while late and late[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(late)
                with contextlib.suppress(OSError):  # a link that is down
                    self._sockets[target].send(frame)


def whole_frames(interface: str) -> None:
    """Have an interface compute checksums itself, and neither split nor join packets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):  # what an interface cannot do it does not have to leave
                fcntl.ioctl(control, SIOCETHTOOL, request)


def _raw_socket(interface: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.bind((interface, 0))
    return raw
