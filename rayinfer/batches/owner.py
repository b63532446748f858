"""Owner of files and batches: what survives is in its store, and a thread validates inputs and writes outputs."""

import fcntl
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from rayinfer.batches.claims import Claims
from rayinfer.batches.input_file import InputError, InputFileInvalid, read_rows, row_body
from rayinfer.batches.output_files import fsync_folder, write_output_files
from rayinfer.batches.records import (
    Batch,
    BatchLimits,
    BatchRow,
    BatchStatus,
    NewBatch,
    RunnerReport,
    RunnerUpdate,
    StoredFile,
)
from rayinfer.batches.store import BatchStore, OpenBatch, encoded_errors
from rayinfer.errors import InvalidParameter, QuotaExceeded, RequestTooLarge, ResourceNotFound, Unavailable

BATCH_PURPOSE, OUTPUT_PURPOSE = "batch", "batch_output"
ROWS_AT_ONCE = 1000
TICK_S = 1.0  # between looks at what has expired
CLEAN_S = 600.0  # between looks at files whose time is over
DEFAULT_LIMITS = BatchLimits()
_ROUTERS_WORK = (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)
_MISSING = {
    BatchStatus.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    BatchStatus.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request was executed."),
}
_LOST = ("not_executed", "This request was not executed.")

logger = logging.getLogger(__name__)


class BatchOwner:
    """The one owner of a folder of files and batches; methods may be called by several threads."""

    def __init__(
        self, folder: Path, *, limits: BatchLimits = DEFAULT_LIMITS, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder_lock = _lock_folder(folder)
        self._store = BatchStore(folder)
        self._store.delete_unfinished()
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()  # of claims, uploads and changes of a batch's state
        self._claims = Claims(time.monotonic)
        self._open: dict[str, OpenBatch] = {}  # with rows for routers
        self._uploads: dict[str, tuple[str, StoredFile]] = {}  # with their owners
        self._has_work = threading.Event()
        self._has_work.set()
        self._is_closing = False
        for batch in self._store.open_batches(*_ROUTERS_WORK):
            self._offer(batch)
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def begin_file(self, owner: str, filename: str, purpose: str, expires_after_s: float | None) -> str:
        """Begin a file and return its id; raises QuotaExceeded."""
        self._check_quota(owner, 0)
        now_s = self._clock()
        file = StoredFile(
            id=f"file-{uuid.uuid4().hex}",
            filename=filename,
            purpose=purpose,
            num_bytes=0,
            created_s=now_s,
            expires_s=None if expires_after_s is None else now_s + expires_after_s,
        )
        self._uploads[file.id] = owner, file
        return file.id

    def append_file(self, file_id: str, offset: int, content: bytes) -> None:
        """Write the next part of a file; a part may be written again.

        Raises ResourceNotFound, RequestTooLarge and QuotaExceeded.
        """
        owner, _ = self._upload(file_id)
        if offset + len(content) > self._limits.max_file_bytes:
            raise RequestTooLarge(f"The file is larger than {self._limits.max_file_bytes} bytes.")
        self._check_quota(owner, offset + len(content))
        path = self._store.path_of(file_id)
        with path.open("r+b" if path.exists() else "xb") as file:
            file.seek(offset)
            file.write(content)

    def finish_file(self, file_id: str) -> StoredFile:
        """Make a file durable and visible; raises ResourceNotFound."""
        owner, begun = self._upload(file_id)
        path = self._store.path_of(file_id)
        path.touch(mode=0o600)
        num_bytes = _make_durable(path)
        file = StoredFile(
            id=begun.id,
            filename=begun.filename,
            purpose=begun.purpose,
            num_bytes=num_bytes,
            created_s=begun.created_s,
            expires_s=begun.expires_s,
        )
        self._store.add_file(owner, file)
        del self._uploads[file_id]
        return file

    def find_file(self, owner: str, file_id: str) -> StoredFile:
        """Return a file's record; raises ResourceNotFound."""
        file = self._store.file(owner, file_id)
        if file is None or (file.expires_s is not None and file.expires_s < self._clock()):
            raise ResourceNotFound(f"No such file: {file_id[:80]!r}.")
        return file

    def list_files(self, owner: str, purpose: str | None) -> list[StoredFile]:
        """Return the records of an owner's files, newest first."""
        now_s = self._clock()
        files = (file for file in self._store.files(owner) if file.expires_s is None or file.expires_s >= now_s)
        return [file for file in files if purpose is None or file.purpose == purpose]

    def read_file(self, owner: str, file_id: str, offset: int, num_bytes: int) -> bytes:
        """Read a part of a file; raises ResourceNotFound."""
        self.find_file(owner, file_id)
        with self._store.path_of(file_id).open("rb") as file:
            file.seek(offset)
            return file.read(num_bytes)

    def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file; raises ResourceNotFound, and InvalidParameter while a batch needs it."""
        self.find_file(owner, file_id)
        with self._lock:
            if self._store.is_needed(file_id):
                raise InvalidParameter("The file is the input of a batch that has not ended.", "file_id")
            self._store.delete_file(file_id)

    def create_batch(self, new: NewBatch) -> Batch:
        """Begin a batch; raises ResourceNotFound, InvalidParameter and QuotaExceeded."""
        file = self.find_file(new.owner, new.input_file_id)
        if file.purpose != BATCH_PURPOSE:
            raise InvalidParameter(
                f"The input file must have the purpose {BATCH_PURPOSE!r}, not {file.purpose!r:.80}.", "input_file_id"
            )
        with self._lock:
            batch_id = self._store.add_batch(new)
        self._has_work.set()
        return self.find_batch(new.owner, batch_id)

    def find_batch(self, owner: str, batch_id: str) -> Batch:
        """Return a batch; raises ResourceNotFound."""
        batch = self._store.batch(owner, batch_id)
        if batch is None:
            raise ResourceNotFound(f"No such batch: {batch_id[:80]!r}.")
        return batch

    def list_batches(self, owner: str) -> list[Batch]:
        """Return an owner's batches, newest first."""
        return self._store.batches(owner)

    def cancel_batch(self, owner: str, batch_id: str) -> Batch:
        """Have a batch end with what is there; one that has ended, or ends, stays as it is."""
        with self._lock:
            batch = self.find_batch(owner, batch_id)
            if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
                self._end_early(batch_id, BatchStatus.CANCELLED)
        self._has_work.set()
        return self.find_batch(owner, batch_id)

    def sync(self, report: RunnerReport) -> RunnerUpdate:
        """Take a router's report and return rows for it; harmless when repeated."""
        if report.results:
            self._store.add_results(report.results)
        with self._lock:
            self._claims.take_running(report.router, report.running, [result.key for result in report.results])
            given = self._claims.give(report.router, report.num_free) if report.num_free else []
            needed = {key.batch_id for key in report.running}
            stopped = [batch_id for batch_id in needed if self._is_stopped(batch_id)]
            batches = dict(self._open)
            is_idle = any(self._claims.is_idle(batch_id) for batch_id in batches)
            has_open = bool(batches) or self._has_work.is_set()
            num_waiting = self._claims.num_pending
        if is_idle:
            self._has_work.set()
        rows = [
            BatchRow(
                key=key,
                endpoint=batches[key.batch_id].endpoint,
                body=row_body(self._store.read_line(key, batches[key.batch_id].input_file)),
                key_id=batches[key.batch_id].key_id,
                tenant=batches[key.batch_id].tenant,
            )
            for key in given
        ]
        return RunnerUpdate(
            rows=rows,
            stopped=stopped,
            has_open_batches=has_open,
            num_open_batches=len(batches),
            num_waiting_rows=num_waiting,
        )

    def close(self) -> None:
        """End the thread and close the store; what is unfinished goes on at the next start."""
        self._is_closing = True
        self._has_work.set()
        self._thread.join()
        self._store.close()
        self._folder_lock.close()

    def _upload(self, file_id: str) -> tuple[str, StoredFile]:
        found = self._uploads.get(file_id)
        if found is None:
            raise ResourceNotFound("The upload was interrupted; send the file again.")
        return found

    def _check_quota(self, owner: str, num_bytes: int) -> None:
        if self._store.num_stored_bytes(owner) + num_bytes > self._limits.max_stored_bytes:
            raise QuotaExceeded(f"The stored files would be larger than {self._limits.max_stored_bytes} bytes.")

    def _is_stopped(self, batch_id: str) -> bool:
        batch = self._open.get(batch_id)
        return batch is None or batch.status is BatchStatus.CANCELLING

    def _offer(self, batch: OpenBatch) -> None:
        """Offer a batch's rows to routers."""
        self._open[batch.id] = batch
        self._claims.add(batch.id, batch.owner, self._store.pending_lines(batch.id))
        if batch.status is BatchStatus.CANCELLING:
            self._claims.stop(batch.id)

    def _end_early(self, batch_id: str, ending: BatchStatus) -> None:
        self._store.set_status(batch_id, BatchStatus.CANCELLING, ending=ending)
        if batch_id in self._open:
            self._open[batch_id] = self._open[batch_id]._replace(status=BatchStatus.CANCELLING, ending=ending)
            self._claims.stop(batch_id)

    def _work(self) -> None:
        """Do what takes long, until closed."""
        cleaned_s = 0.0
        while not self._is_closing:
            try:
                self._advance()
                if self._clock() - cleaned_s > CLEAN_S:
                    cleaned_s = self._clock()
                    self._store.delete_expired_files(cleaned_s)
            except Exception:
                logger.exception("a batch could not be advanced; it is tried again")
            self._has_work.wait(TICK_S)

    def _advance(self) -> None:
        self._has_work.clear()
        for batch in self._store.open_batches(BatchStatus.VALIDATING):
            self._validate(batch)
        with self._lock:
            for batch in [*self._open.values()]:
                if batch.expires_s < self._clock() and batch.status is BatchStatus.IN_PROGRESS:
                    self._end_early(batch.id, BatchStatus.EXPIRED)
            ended = [batch for batch in self._open.values() if self._claims.is_idle(batch.id)]
            for batch in ended:
                self._store.set_status(batch.id, BatchStatus.FINALIZING)
                del self._open[batch.id]
                self._claims.drop(batch.id)
        for batch in self._store.open_batches(BatchStatus.FINALIZING):
            self._finalize(batch)
        for batch in self._store.open_batches(BatchStatus.CANCELLING):  # before it had rows for routers
            if batch.id not in self._open:
                self._finalize(batch)

    def _validate(self, batch: OpenBatch) -> None:
        """Read a batch's rows, and offer them if all are right."""
        self._store.delete_rows(batch.id)
        rows = []
        try:
            for row in read_rows(self._store.path_of(batch.input_file), batch.endpoint, self._limits.max_requests):
                rows.append(row)
                if len(rows) >= ROWS_AT_ONCE:
                    self._store.add_rows(batch.id, rows)
                    rows = []
            self._store.add_rows(batch.id, rows)
            self._check_open_requests(batch)
        except InputFileInvalid as invalid:
            self._store.delete_rows(batch.id)
            errors = encoded_errors([error._asdict() for error in invalid.errors])
            self._store.set_status(batch.id, BatchStatus.FAILED, errors=errors)
            return
        with self._lock:
            if (
                self.find_batch(batch.owner, batch.id).status is BatchStatus.VALIDATING
            ):  # and was not cancelled meanwhile
                self._store.set_status(batch.id, BatchStatus.IN_PROGRESS)
                self._offer(batch._replace(status=BatchStatus.IN_PROGRESS))

    def _check_open_requests(self, batch: OpenBatch) -> None:
        if self._store.num_open_requests(batch.owner) > self._limits.max_open_requests:
            limit = self._limits.max_open_requests
            raise InputFileInvalid(
                [InputError("request_limit_exceeded", f"Open batches may have {limit} requests together.")]
            )

    def _finalize(self, batch: OpenBatch) -> None:
        """Write a batch's files and end it; done again after a crash, it comes to the same."""
        stem = batch.id.removeprefix("batch_")
        names = [f"file-{stem}-output", f"file-{stem}-errors"]
        missing = _MISSING.get(batch.ending, _LOST)
        paths = [self._store.path_of(name) for name in names]
        sizes = write_output_files(self._store.outcomes(batch.id), *paths, missing=missing)
        expires_after_s, now_s = batch.output_expires_after_s, self._clock()
        written: list[str | None] = []
        for name, size in zip(names, sizes, strict=True):
            if size:
                file = StoredFile(
                    id=name,
                    filename=f"{batch.id}_{name.rpartition('-')[2]}.jsonl",
                    purpose=OUTPUT_PURPOSE,
                    num_bytes=size,
                    created_s=now_s,
                    expires_s=None if expires_after_s is None else now_s + expires_after_s,
                )
                self._store.add_file(batch.owner, file)
            written.append(name if size else None)
        self._store.set_status(batch.id, batch.ending, output_file=written[0], error_file=written[1])
        self._store.forget_bodies(batch.id)


def _lock_folder(folder: Path) -> IO[bytes]:
    """Keep other owners out of a folder while the returned file is open; raises Unavailable."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = (folder / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise Unavailable("The folder of files and batches is used by another service.") from None
    return file


def _make_durable(path: Path) -> int:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    fsync_folder(path.parent)
    return size
