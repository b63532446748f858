"""Resources of a process group, and those left behind after its end."""

from collections.abc import Iterable
from pathlib import Path

import psutil

from rayinfer_deployments.cluster.process_tree import Process, read_process


class GroupRemains:
    """Record of processes, their listening ports and their shared memory, taken while they are alive."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._processes: list[Process] = [process for pid in pids if (process := read_process(pid))]
        self._ports = {port for process in self._processes for port in _listening_ports(process.pid)}
        self._shared = {path for process in self._processes for path in _shared_memory(process.pid)}

    @property
    def num_processes(self) -> int:
        """Those that are still alive."""
        return sum(process.is_alive for process in self._processes)

    def count(self) -> int:
        """Count what is left: processes, ports that are listened on, files of shared memory."""
        listened = {
            connection.laddr.port
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        return self.num_processes + len(self._ports & listened) + sum(path.exists() for path in self._shared)


def _listening_ports(pid: int) -> set[int]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


def _shared_memory(pid: int) -> set[Path]:
    """Files of shared memory that a process maps by a name which others could open, too."""
    fields = (line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    names = {line[5] for line in fields if len(line) == 6 and line[5].startswith("/dev/shm/")}
    return {Path(name) for name in names if not name.endswith(" (deleted)") and "plasma" not in name}
