"""Lease of a job: one copy runs at a time, and one that was believed dead cannot write any more."""

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec
import psutil

from rayinfer.jobs.interfaces import JobError, JobRunning, LeaseLost
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.storage.stores import Store

EXPIRY_S = 60.0  # of a copy on another host, whose end cannot be seen
_LEASE = "lease-"
_BEATS_PER_EXPIRY = 4
_STARTED_TOLERANCE_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRecord:
    """Content of a lease's file: its holder, and when that was last alive, in seconds since 1970."""

    owner: str
    host: str
    kernel: str  # boot and namespace of processes, in which pid means something
    pid: int
    process_started_s: float
    acquired_s: float
    renewed_s: float
    expiry_s: float
    released: bool = False


class Lease:
    """Right of one copy to write; a thread renews it. Its fencing token is one more than that of the copy before."""

    def __init__(self, store: Store, token: int, record: LeaseRecord, predecessor_may_run: bool) -> None:
        self.fencing_token = token
        self.predecessor_may_run = predecessor_may_run
        self._store = store
        self._record = record
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_end, name="job-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise LeaseLost if another copy has taken over."""
        if _newest_token(self._store) != self.fencing_token:
            raise LeaseLost(
                f"{self._store.location}: another copy of the job has taken over; this one ({self._record.host},"
                f" process {self._record.pid}) stops without writing"
            )

    def release(self) -> None:
        """Stop renewing, and let the next copy start at once."""
        if self._is_ending.is_set():
            return
        self._is_ending.set()
        self._thread.join()
        if _newest_token(self._store) == self.fencing_token:
            self._write(replace(self._record, released=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _renew_until_end(self) -> None:
        while not self._is_ending.wait(self._record.expiry_s / _BEATS_PER_EXPIRY):
            try:
                if _newest_token(self._store) != self.fencing_token:
                    return
                self._write(replace(self._record, renewed_s=time.time()))
            except (OSError, JobError):
                continue  # a full disk or a store that is away: the next beat may succeed, and `check` decides

    def _write(self, record: LeaseRecord) -> None:
        self._store.write(_name_of(self.fencing_token), msgspec.json.encode(record))


def acquire_lease(
    folder: ProgressFolder, owner: str, *, expiry_s: float = EXPIRY_S, clock: Callable[[], float] = time.time
) -> Lease:
    """Take a job's lease, or raise JobRunning, which names the host and process that hold it.

    A lease is free when it was released, when its process is gone from this host, or when it has expired.
    """
    store = folder.store
    token, held = _newest_token(store), None
    if token:
        held = _read(store, token)
    may_run = False
    if held is not None and not held.released and not _ended_here(held):
        age_s = clock() - held.renewed_s
        if age_s < held.expiry_s:
            raise JobRunning(_refusal(store, held, age_s))
        may_run = True
    now = clock()
    record = LeaseRecord(
        owner=owner,
        host=platform.node(),
        kernel=_kernel(),
        pid=os.getpid(),
        process_started_s=psutil.Process().create_time(),
        acquired_s=now,
        renewed_s=now,
        expiry_s=expiry_s,
    )
    # Creation is atomic, so of two copies that found the same lease free one gets the next number.
    if not store.create(_name_of(token + 1), msgspec.json.encode(record)):
        raise JobRunning(f"{store.location}: another copy of the job has started at this moment")
    for name in _lease_names(store):
        if name < _name_of(token):
            store.remove(name)
    store.remove_temporaries()
    return Lease(store, token + 1, record, may_run)


def read_lease(folder: ProgressFolder) -> LeaseRecord | None:
    """Return the newest lease, held or not."""
    token = _newest_token(folder.store)
    return _read(folder.store, token) if token else None


def is_held(record: LeaseRecord, now_s: float) -> bool:
    """Say whether a lease's holder counts as running."""
    return not record.released and not _ended_here(record) and now_s - record.renewed_s < record.expiry_s


def _newest_token(store: Store) -> int:
    names = _lease_names(store)
    return int(names[-1].removeprefix(_LEASE)) if names else 0


def _lease_names(store: Store) -> list[str]:
    return [name for name in store.names() if name.startswith(_LEASE)]


def _name_of(token: int) -> str:
    return f"{_LEASE}{token:08d}"


def _read(store: Store, token: int) -> LeaseRecord | None:
    content = store.read(_name_of(token))
    try:
        return msgspec.json.decode(content, type=LeaseRecord) if content else None
    except msgspec.DecodeError:
        return None  # damaged by a power cut, which its holder has not survived


def _refusal(store: Store, held: LeaseRecord, age_s: float) -> str:
    return (
        f"{store.location}: the job runs already, as {held.owner}: process {held.pid} on {held.host}, last seen"
        f" {age_s:.0f} s ago; if it is dead, its lease ends in {held.expiry_s - age_s:.0f} s"
    )


def _ended_here(record: LeaseRecord) -> bool:
    """Say whether a lease's process was one of this host and is gone."""
    if record.host != platform.node() or record.kernel != _kernel():
        return False
    try:
        started_s = psutil.Process(record.pid).create_time()
    except psutil.NoSuchProcess:
        return True
    return bool(abs(started_s - record.process_started_s) > _STARTED_TOLERANCE_S)


def _kernel() -> str:
    """Return the names of this boot and of this namespace of processes, where the system has them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return str(round(psutil.boot_time()))
