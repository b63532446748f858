"""Memory of the machine, or of the container that an engine runs in."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_ROOT = Path("/")


class _Container(NamedTuple):
    limit_bytes: int
    left_bytes: int


def host_bytes(root: Path = _ROOT) -> int:
    """Return all memory of the machine, at most its container's limit; its page cache can be dropped."""
    return min([_machine_bytes(), *(container.limit_bytes for container in _containers(root))])


def available_host_bytes(root: Path = _ROOT) -> int:
    """Return the memory available without swapping, on the machine and in its container; without /proc all of it.

    Kernels before 3.14 and some containers lack MemAvailable: then it is the free memory and that of cached files.
    """
    return max(0, min([_available_on_machine(root), *(container.left_bytes for container in _containers(root))]))


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _available_on_machine(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        pairs = (line.partition(":") for line in lines)
        kib = {name: int(value.split()[0]) for name, _, value in pairs if value.strip()}
    except (OSError, ValueError):
        return _machine_bytes()
    available = kib.get("MemAvailable")
    if available is None:
        available = sum(kib.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    return available << 10


def _containers(root: Path) -> Iterator[_Container]:
    """Find the control groups, of either version, whose limits hold for this process: its own and those around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0":
            mounted, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            mounted = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        for folder in (path, *path.parents):  # of which a container sees the outermost only
            if (container := _read_container(mounted / folder, *names)) is not None:
                yield container


def _read_container(folder: Path, limit_name: str, usage_name: str, prefix: str) -> _Container | None:
    """Read the memory of one group; None where it has no limit. Cached files count as free."""
    try:
        limit = (folder / limit_name).read_text().strip()
        if not limit.isdigit():  # "max"
            return None
        usage = int((folder / usage_name).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        return _Container(int(limit), int(limit) - usage + cached)
    except (OSError, ValueError):
        return None
