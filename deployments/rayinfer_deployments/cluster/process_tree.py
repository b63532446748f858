"""Descendants of a process, read from /proc, and their reliable termination."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process; the pid alone may be given to another process later."""

    pid: int
    parent: int
    start_ticks: int  # clock ticks from the machine's start to the process's
    title: str  # the command line, or what the process calls itself

    @property
    def is_alive(self) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        now = read_process(self.pid)
        return now is not None and now.start_ticks == self.start_ticks


def read_process(pid: int) -> Process | None:
    """Look a process up; None when there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    state, parent, *rest = _fields(stat)
    if state in "ZX":
        return None
    start_ticks = int(rest[17])  # field 22 of the line; rest begins with field 5
    return Process(
        pid=pid,
        parent=int(parent),
        start_ticks=start_ticks,
        title=title.replace(b"\0", b" ").decode(errors="replace").strip(),
    )


def children(pid: int) -> list[Process]:
    """List the processes that `pid` started itself; cheap, but one that is just ending may be overlooked."""
    lists: list[str] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended, or a kernel that keeps no such lists
            lists += (thread / "children").read_text().split()
    return [process for child in lists if (process := read_process(int(child)))]


def descendants(pid: int) -> list[Process]:
    """List the processes below `pid`, parents before their children."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := read_process(int(entry.name))):
            children.setdefault(process.parent, []).append(process)
    found = list(children.get(pid, []))
    for process in found:  # grows while it is walked
        found.extend(children.get(process.pid, []))
    return found


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that none can escape."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of orphaned processes")


def reap_children() -> None:
    """Take the exit status of children that have ended, so that no zombie remains."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_descendants(grace_s: float) -> None:
    """End every process below this one: ask with SIGTERM, and kill what still runs after `grace_s`."""
    deadline = time.monotonic() + grace_s
    asked: set[Process] = set()
    while remaining := descendants(os.getpid()):
        force = time.monotonic() >= deadline
        new = remaining if force else [process for process in remaining if process not in asked]
        send_signal(new, signal.SIGKILL if force else signal.SIGTERM)
        asked.update(new)
        time.sleep(POLL_S)
        reap_children()
    reap_children()


def send_signal(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _fields(stat: str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, the state."""
    # The command's name stands in parentheses and may hold anything, parentheses and spaces too.
    return stat[stat.rindex(")") + 2 :].split()
