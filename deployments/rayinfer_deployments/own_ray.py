"""A Ray of a service's own, which ends with it.

Serve is not imported here: that takes a second, in which Ray can come up.
"""

import contextlib
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any

import ray

from rayinfer.errors import RayinferError
from rayinfer_deployments.background_call import BackgroundCall
from rayinfer_deployments.process_tree import Process, adopt_orphans, descendants, end_descendants, reap_children
from rayinfer_deployments.ray_environment import settings_of_ray
from rayinfer_deployments.ray_processes import only_needed_processes
from rayinfer_deployments.ray_token import ensure_private_token

POLITE_END_S = 4.0  # for Ray's own shutdown
FORCED_END_S = 2.0  # from SIGTERM to SIGKILL for whatever that left
REASON_LIMIT = 300  # characters of what Ray says that are shown
VITAL_PROCESSES = ("gcs_server", "raylet")


class OwnRay:
    """A Ray that lives in this process's descendants; leaving it ends every one of them.

    Its session folder is deleted then, unless an error ended it, whose reasons may stand in the logs there.
    """

    owns_ray = True

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.address = ""  # where Ray's own table (GCS) is reached
        self._check_while_starting = check  # may raise
        self._starting: BackgroundCall[object] | None = None
        self._vital: list[Process] = []
        self._session: Path | None = None

    def __enter__(self) -> "OwnRay":
        adopt_orphans()
        ensure_private_token(settings_of_ray())
        try:
            self._starting = start_ray(address="local", include_dashboard=False)
            context: Any = self._starting.result(self._check_while_starting)
            self._session = Path(context.address_info["session_dir"])
            self.address = ray.get_runtime_context().gcs_address
            self._vital = [process for process in descendants(os.getpid()) if _is_vital(process)]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._session is not None and not isinstance(error, Exception):
            delete_session(self._session)

    def environments(self) -> list[dict[str, str]]:
        """Tell of no node: they have this process's environment, which is in order."""
        return []

    def check(self) -> None:
        """Raise RayinferError when a process is gone that Ray cannot work without."""
        reap_children()
        for process in self._vital:
            if not process.is_alive:
                raise RayinferError(f"Ray is gone: {_program(process)} (pid {process.pid}) has ended")

    def _end(self) -> None:
        with undisturbed():
            if self._starting is not None and self._starting.is_done:
                run_for(POLITE_END_S, ray.shutdown)  # of a Ray that is half there it would wait for the other half
            end_descendants(FORCED_END_S)
            if self._starting is not None:
                self._starting.release()


def start_ray(**settings: object) -> BackgroundCall[object]:
    """Start or join Ray beside the main thread: there it would hear no signal for long, and Ray would answer them."""

    def start() -> object:
        try:
            with only_needed_processes():
                return ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        except Exception as error:
            reason = " ".join(str(error).split())[:REASON_LIMIT]
            raise RayinferError(f"Ray cannot be started or joined: {type(error).__name__}: {reason}") from error

    return BackgroundCall(start)


def count_gpus() -> float:
    """Tell how many GPUs the Ray has that this process is part of."""
    return float(ray.cluster_resources().get("GPU", 0.0))


def delete_session(session: Path) -> None:
    """Delete a Ray's logs and sockets, whose processes have ended, and the link that says it was the latest."""
    latest = session.parent / "session_latest"
    with contextlib.suppress(OSError):
        if latest.is_symlink() and latest.readlink().name == session.name:
            latest.unlink()
    shutil.rmtree(session, ignore_errors=True)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold signals off while processes are ended: an interrupted clean-up would leave some behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def run_for(seconds: float, action: Callable[[], object]) -> None:
    """Let a clean-up run for so long at most: a Ray that is half gone would keep it waiting for minutes."""

    def run() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)


def _is_vital(process: Process) -> bool:
    return _program(process) in VITAL_PROCESSES


def _program(process: Process) -> str:
    return PurePath(process.title.partition(" ")[0]).name
