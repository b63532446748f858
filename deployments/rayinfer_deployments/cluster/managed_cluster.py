"""A Ray cluster that a service starts for itself and ends with it.

Serve is not imported here: that takes a second, in which Ray can come up.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import TracebackType

import ray
from ray._common.utils import get_default_system_temp_dir

from rayinfer.errors import ConfigError, ModelLoadError, RayinferError
from rayinfer_deployments.cluster.background_call import BackgroundCall
from rayinfer_deployments.cluster.head_node_processes import only_needed_processes
from rayinfer_deployments.cluster.process_tree import (
    Process,
    adopt_orphans,
    descendants,
    end_descendants,
    reap_children,
)
from rayinfer_deployments.cluster.ray_environment import settings_of_ray
from rayinfer_deployments.cluster.ray_token import ensure_private_token

POLITE_END_S = 4.0  # for Ray's own shutdown
FORCED_END_S = 2.0  # from SIGTERM to SIGKILL for whatever that left
REASON_LIMIT = 300  # characters of Ray's error that are shown
RAY_FOLDER = "ray"  # within the private one, as Ray opens it to all users
PREFIX = "ray-"  # of private folders, which others use too
MARK = ".rayinfer"  # empty file in private folders of ours
EXPLAINED = (ConfigError, ModelLoadError)  # errors that name what to change: Ray's logs add nothing
VITAL_PROCESSES = ("gcs_server", "raylet")


class ManagedCluster:
    """A Ray cluster among this process's descendants; leaving the block ends every one of them.

    Ray lets every user of the machine write into its folders, its sockets' too: here they lie in one that only this
    user can enter. It is deleted at the end, except after an error other than the `explained` ones: logs may hold its
    cause, and a note of the error names them.
    """

    owns_ray = True

    def __init__(
        self, check: Callable[[], None] = lambda: None, *, explained: tuple[type[Exception], ...] = EXPLAINED
    ) -> None:
        self.address = ""  # where Ray's own table (GCS) is reached
        self._check_while_starting = check  # may raise
        self._explained = explained
        self._starting: BackgroundCall[object] | None = None
        self._vital: list[Process] = []
        self._folder: PrivateFolder | None = None

    def __enter__(self) -> "ManagedCluster":
        adopt_orphans()
        ensure_private_token(settings_of_ray())
        try:
            parent = Path(get_default_system_temp_dir())  # where Ray would put its own
            self._folder = PrivateFolder(parent)
            delete_abandoned_folders(parent)
            self._starting = start_ray(
                address="local", include_dashboard=False, _temp_dir=str(self._folder.path / RAY_FOLDER)
            )
            self._starting.result(self._check_while_starting)
            self.address = ray.get_runtime_context().gcs_address
            self._vital = [process for process in descendants(os.getpid()) if _is_vital(process)]
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def environments(self) -> list[dict[str, str]]:
        """Return no node: all have this process's environment, which is correct."""
        return []

    def check(self) -> None:
        """Raise RayinferError when a process is gone that Ray cannot work without."""
        reap_children()
        for process in self._vital:
            if not process.is_alive:
                raise RayinferError(f"Ray has ended: {_program(process)} (pid {process.pid}) exited")

    def _end(self, error: BaseException | None) -> None:
        with undisturbed():
            if self._starting is not None and self._starting.is_done:
                run_for(POLITE_END_S, ray.shutdown)  # of a Ray that is half there it would wait for the other half
            end_descendants(FORCED_END_S)
            if self._starting is not None:
                self._starting.release()
            if self._folder is not None:
                self._folder.end(error, self._explained)


class PrivateFolder:
    """A new folder that only this user can enter, locked while its process lives."""

    def __init__(self, parent: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = _locked_folder(self.path)  # the kernel releases it, however the process ends
        (self.path / MARK).touch()  # after the lock: marked and unlocked means abandoned

    def end(self, error: BaseException | None, explained: tuple[type[Exception], ...] = EXPLAINED) -> None:
        """Delete the folder, or leave it where Ray's logs may hold an error's cause, and note their path in the error.

        The newest folder that was left stays until another is.
        """
        logs = self.path / RAY_FOLDER / "session_latest" / "logs"
        if isinstance(error, Exception) and not isinstance(error, explained) and logs.is_dir():
            error.add_note(f"Ray's logs: {logs.resolve()}")
            (self.path / MARK).touch()  # the time of its end
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def delete_abandoned_folders(parent: Path) -> None:
    """Delete this user's private folders whose processes have ended, except the newest: it may still be read."""
    with contextlib.ExitStack() as locks:
        abandoned: dict[Path, float] = {}  # to when each was marked
        for path in parent.glob(f"{PREFIX}*/{MARK}"):
            with contextlib.suppress(OSError):  # in use, or another user's
                locks.callback(os.close, _locked_folder(path.parent))
                abandoned[path.parent] = path.lstat().st_mtime
        for folder in sorted(abandoned, key=abandoned.__getitem__)[:-1]:
            shutil.rmtree(folder, ignore_errors=True)


def start_ray(**settings: object) -> BackgroundCall[object]:
    """Start or join Ray beside the main thread: in it Ray would block signals for long, or handle them itself."""

    def start() -> object:
        try:
            with only_needed_processes():
                return ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        except Exception as error:
            reason = " ".join(str(error).split())[:REASON_LIMIT]
            raise RayinferError(f"Ray cannot be started or attached to: {type(error).__name__}: {reason}") from error

    return BackgroundCall(start)


def count_resource(name: str) -> float:
    """Return how much of a resource (CPU, GPU) the Ray that this process is part of has."""
    return float(ray.cluster_resources().get(name, 0.0))


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
    """Run a clean-up with a time limit: a Ray that is half gone would block it for minutes."""

    def run() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)


def _locked_folder(path: Path) -> int:
    """Lock a folder that is private to this user; raises OSError where it is not, or a living process has the lock."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} is not private to this user")
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        raise
    return folder


def _is_vital(process: Process) -> bool:
    return _program(process) in VITAL_PROCESSES


def _program(process: Process) -> str:
    return PurePath(process.title.partition(" ")[0]).name
