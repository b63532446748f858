"""Network of several nodes on one machine: a namespace for each, with an address of its own, on one bridge.

Needs root and iproute2. Links are cut by taking them down, and two nodes are parted by blackhole routes: this works
without kernel modules for traffic control.
"""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

BRIDGE = "rayinfer-br"
NETWORK = "10.77.5"
HERE = f"{NETWORK}.254"  # of the machine itself, where clients are


class NodeNetwork:
    """Namespaces of the nodes 1 to n, each connected to the bridge by a pair of virtual interfaces."""

    def __init__(self, num_nodes: int) -> None:
        self.nodes = range(1, num_nodes + 1)

    def address(self, node: int) -> str:
        """Return a node's address."""
        return f"{NETWORK}.{node}"

    def namespace(self, node: int) -> int:
        """Return the number of a node's namespace, by which its processes are known."""
        return Path(f"/run/netns/{_name(node)}").stat().st_ino

    def inside(self, node: int, command: Sequence[str], hidden: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs a command on a node; the hidden folders are empty there."""
        mounts = "".join(f"mount -t tmpfs none '{folder}' && " for folder in hidden)
        script = f'mount --make-rprivate / && {mounts}exec "$@"'
        return ["ip", "netns", "exec", _name(node), "unshare", "--mount", "sh", "-c", script, "sh", *command]

    def link(self, node: int) -> str:
        """Return the name of a node's interface on the bridge."""
        return f"rayinfer-v{node}"

    def cut(self, node: int) -> None:
        """Take a node's link down."""
        _ip(f"link set {self.link(node)} down")

    def mend(self, node: int) -> None:
        """Take a node's link up again."""
        _ip(f"link set {self.link(node)} up")

    @contextlib.contextmanager
    def parted(self, first: int, second: int) -> Iterator[None]:
        """Drop all packets between two nodes while the block lasts; both still reach all others."""
        ways = [(first, second), (second, first)]
        for node, other in ways:
            _ip(f"-n {_name(node)} route add blackhole {self.address(other)}/32")
        try:
            yield
        finally:
            for node, other in ways:
                _ip(f"-n {_name(node)} route del blackhole {self.address(other)}/32")

    def __enter__(self) -> "NodeNetwork":
        self._remove()
        _ip(f"link add {BRIDGE} type bridge")
        _ip(f"addr add {HERE}/24 dev {BRIDGE}")
        _ip(f"link set {BRIDGE} up")
        for node in self.nodes:
            _ip(f"netns add {_name(node)}")
            _ip(f"link add {self.link(node)} type veth peer name eth0 netns {_name(node)}")
            _ip(f"link set {self.link(node)} master {BRIDGE} up")
            _ip(f"-n {_name(node)} addr add {self.address(node)}/24 dev eth0")
            _ip(f"-n {_name(node)} link set lo up")
            _ip(f"-n {_name(node)} link set eth0 up")
            _ip(f"-n {_name(node)} route add default via {HERE}")
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        """Remove what this run, or an earlier one that was killed, has made."""
        for node in self.nodes:
            _ip(f"netns del {_name(node)}", may_fail=True)
            _ip(f"link del {self.link(node)}", may_fail=True)
        _ip(f"link del {BRIDGE}", may_fail=True)


def _name(node: int) -> str:
    return f"rayinfer-{node}"


def _ip(arguments: str, *, may_fail: bool = False) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    assert may_fail or done.returncode == 0, f"ip {arguments}: {done.stderr}"
