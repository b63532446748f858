"""Records of running services: a file for each port in the cache folder, which other commands read."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rayinfer.config import cache_folder
from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.process_tree import read_process


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceRecord:
    """One service that was started on this machine."""

    pid: int  # of `rayinfer serve`
    start_ticks: int  # distinguishes the process from a later one with the same pid
    host: str
    port: int
    models: list[str]
    ray_address: str
    owns_ray: bool  # whether Ray was started by the service and ends with it
    application: str  # its name in Serve
    has_tls: bool = False
    key_file: str | None = None  # of the API keys; the usage log lies beside it

    @property
    def is_alive(self) -> bool:
        """Return whether the process that wrote the record still runs."""
        process = read_process(self.pid)
        return process is not None and process.start_ticks == self.start_ticks

    @property
    def age_s(self) -> float:
        """Return the seconds since that process was started."""
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return up_s - self.start_ticks / os.sysconf("SC_CLK_TCK")

    @property
    def control_socket(self) -> Path:
        """Return the path of the process's control socket."""
        return control_socket_path(self.port)

    @property
    def base_url(self) -> str:
        """Return the service's URL, seen from this machine."""
        return service_url(self.host, self.port, has_tls=self.has_tls)


def service_url(host: str, port: int, *, has_tls: bool = False) -> str:
    """Return the URL at which a server bound to `host` is reached from its own machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


def record_folder() -> Path:
    """Return the folder of the records."""
    return cache_folder() / "services"


def control_socket_path(port: int) -> Path:
    """Return the path of the control socket of the service on a port."""
    return record_folder() / f"{port}.sock"


@contextlib.contextmanager
def recorded(
    *,
    host: str,
    port: int,
    models: list[str],
    ray_address: str,
    owns_ray: bool,
    application: str,
    has_tls: bool = False,
    key_file: str | None = None,
) -> Iterator[ServiceRecord]:
    """Keep a record of this process's service while it runs."""
    own = read_process(os.getpid())
    assert own is not None
    record = ServiceRecord(
        pid=own.pid,
        start_ticks=own.start_ticks,
        host=host,
        port=port,
        models=models,
        ray_address=ray_address,
        owns_ray=owns_ray,
        application=application,
        has_tls=has_tls,
        key_file=key_file,
    )
    path = record_folder() / f"{port}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(record), indent=2) + "\n")
    unfinished.replace(path)
    try:
        yield record
    finally:
        path.unlink(missing_ok=True)


def find_services(port: int | None = None) -> list[ServiceRecord]:
    """List the services that run on this machine, or the one on `port`; raises RayinferError when it is not there."""
    records = [record for path in sorted(record_folder().glob("*.json")) if (record := _read(path)) is not None]
    alive = [record for record in records if record.is_alive]
    if port is None:
        return alive
    found = [record for record in alive if record.port == port]
    if not found:
        ports = ", ".join(str(record.port) for record in alive) or "none"
        raise RayinferError(f"no rayinfer service runs on port {port} of this machine (running: {ports})")
    return found


def find_service(port: int | None) -> ServiceRecord:
    """Find the service on `port`, or the only one there is; raises RayinferError when that is not clear."""
    records = find_services(port)
    if len(records) == 1:
        return records[0]
    if not records:
        raise RayinferError(
            "no rayinfer service runs on this machine: start one with `rayinfer serve`, or pass --address"
        )
    ports = ", ".join(str(record.port) for record in records)
    raise RayinferError(f"several services run on this machine: choose one with --port (running: {ports})")


def _read(path: Path) -> ServiceRecord | None:
    try:
        return ServiceRecord(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # another version's, or just being removed
