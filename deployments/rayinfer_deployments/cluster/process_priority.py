"""CPU priority of Ray's and Serve's background processes below the engines'.

On few cores a process that stops one of an engine's threads stops all of them.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from rayinfer_deployments.cluster.process_tree import Process, children, descendants

LOWEST = 19  # measured: at any higher priority these processes delay an engine's threads at their next barrier

# Not needed by a start: deprioritized from their first moment.
BACKGROUND_PROCESSES = ("/_private/monitor.py", "/_private/log_monitor.py")
# Ray's processes beside the actors, and Serve's that pass no tokens, by their command lines.
CONTROL_PLANE = (
    *BACKGROUND_PROCESSES,
    "/dashboard/dashboard.py",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
    "ray::ServeController",
    "ray::ServeReplica:{application}:engine-",
)


def deprioritize_background_processes(pid: int) -> None:
    """Lower the priority of Ray's background children of `pid` that start-up does not need; may be called often."""
    _deprioritize(children(pid), BACKGROUND_PROCESSES)


def deprioritize_control_plane(pid: int, application: str) -> None:
    """Lower the priority of every process below `pid` that passes no tokens."""
    _deprioritize(descendants(pid), [title.format(application=application) for title in CONTROL_PLANE])


def _deprioritize(processes: Iterable[Process], titles: Iterable[str]) -> None:
    titles = tuple(titles)
    for process in processes:
        if any(title in process.title for title in titles):
            _deprioritize_threads(process.pid)


def _deprioritize_threads(pid: int) -> None:
    """Lower a process; on Linux each of its threads has a priority of its own, and new ones inherit their creator's."""
    with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
        if os.getpriority(os.PRIO_PROCESS, pid) == LOWEST:
            return
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), LOWEST)
