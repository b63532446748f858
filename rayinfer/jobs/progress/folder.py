"""Progress of a job in a folder or under a URL: its last two checkpoints, settings, cancellation and commit record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from rayinfer.jobs.interfaces import PROGRESS_VERSION, JobChanged, JobError, Progress
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.storage.stores import Store, open_store

_CHECKPOINT = "checkpoint-"
_ROWS_AHEAD = "rows-ahead-"  # of the checkpoint with the same token and number
_COMMIT = "commit.json"
_SETTINGS = "settings.json"
_CANCEL = "cancel"
_KEPT = 2
MAX_CHECKPOINT_BYTES = 100_000


class ProgressFolder:
    """Durable progress of a job; checkpoints of a copy with an older lease never replace those of a newer one."""

    def __init__(self, location: str | Path, disk: Disk | None = None) -> None:
        self.store: Store = open_store(location, JobError, disk)

    @property
    def location(self) -> str:
        """Folder or URL."""
        return self.store.location

    def load(self) -> Progress | None:
        """Return the newest whole checkpoint; a damaged one is passed over."""
        return next(filter(None, map(self._read_checkpoint, reversed(self._checkpoints()))), None)

    def load_rows_ahead(self) -> bytes:
        """Return what was saved with the newest whole checkpoint; empty if it is damaged."""
        for name in reversed(self._checkpoints()):
            progress = self._read_checkpoint(name)
            if progress is not None:
                return self._read_sealed(_rows_ahead_of(name)) if progress.rows_ahead else b""
        return b""

    def save(self, progress: Progress, rows_ahead: bytes = b"") -> None:
        """Write a checkpoint durably, and remove all but the one before."""
        sealed = _sealed(msgspec.json.encode(progress))
        if len(sealed) > MAX_CHECKPOINT_BYTES:
            raise JobError(f"a checkpoint takes {len(sealed)} bytes, more than {MAX_CHECKPOINT_BYTES}")
        names = self.store.names()
        # In order of names: a later copy's token is higher, and its rows may be fewer than those of the one before.
        earlier = [name for name in names if name.startswith(_CHECKPOINT)]
        number = 1 + max((_number_of(name) for name in earlier if _token_of(name) == progress.fencing_token), default=0)
        name = f"{_CHECKPOINT}{progress.fencing_token:08d}-{number:010d}"
        if rows_ahead:
            self.store.write(_rows_ahead_of(name), _sealed(rows_ahead))
        self.store.write(name, sealed)
        older = [name for name in earlier if _token_of(name) <= progress.fencing_token]
        for each in older[: 1 - _KEPT]:
            self.store.remove(each)
        oldest = _rows_ahead_of([*older, name][-_KEPT:][0])
        for each in names:  # those of copies that were killed before their checkpoint, too
            if each.startswith(_ROWS_AHEAD) and each < oldest:
                self.store.remove(each)

    def commit(self, summary: Mapping[str, Any]) -> None:
        """Record that the job is complete; its last checkpoint has no rows ahead."""
        for name in self.store.names():
            if name.startswith(_ROWS_AHEAD):
                self.store.remove(name)
        self.store.write(_COMMIT, msgspec.json.encode(summary))

    def committed(self) -> dict[str, Any] | None:
        """Return the record of a complete job."""
        return self._read_json(_COMMIT)

    @property
    def is_begun(self) -> bool:
        """True once the job's settings are kept."""
        return self.store.read(_SETTINGS) is not None

    def check_settings(self, settings: Mapping[str, Any], *, force: bool = False) -> None:
        """Keep the job's settings, or raise JobChanged if others are kept; `force` replaces them until it is complete.

        Without a checkpoint nothing has been computed with the others, and they are replaced.
        """
        kept = self._read_json(_SETTINGS)
        given = msgspec.json.decode(msgspec.json.encode(settings))
        if kept == given:
            return
        if kept is not None:
            changed = "; ".join(
                f"{name}: {_shown(kept.get(name))}, now {_shown(given.get(name))}"
                for name in sorted({*kept, *given})
                if kept.get(name) != given.get(name)
            )
            if self.committed() is not None:
                raise JobChanged(
                    f"{self.location}: the job is complete, with another configuration ({changed}); take another output"
                )
            if not force and self.load() is not None:
                raise JobChanged(
                    f"{self.location}: the job was begun with another configuration ({changed});"
                    " take another output, or --force-config to go on with the new one"
                )
        self.store.write(_SETTINGS, msgspec.json.encode(given))

    def request_cancel(self) -> None:
        """Ask the running copy to stop after its next checkpoint."""
        self.store.write(_CANCEL, b"")

    def cancel_requested(self) -> bool:
        """Say whether a cancellation waits."""
        return self.store.read(_CANCEL) is not None

    def clear_cancel(self) -> None:
        """Forget a cancellation, before a job goes on."""
        self.store.remove(_CANCEL)

    def read(self, name: str) -> bytes | None:
        """Return something else that was kept here, such as a scan of the input."""
        return self.store.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Keep something else here durably."""
        self.store.write(name, data)

    def _checkpoints(self) -> list[str]:
        return sorted(name for name in self.store.names() if name.startswith(_CHECKPOINT))

    def _read_checkpoint(self, name: str) -> Progress | None:
        content = self._read_sealed(name)
        if not content:
            return None
        version = msgspec.json.decode(content).get("version")
        if version != PROGRESS_VERSION:
            raise JobError(
                f"{self.location}: written by another version of rayinfer ({version}, not {PROGRESS_VERSION})"
            )
        return msgspec.json.decode(content, type=Progress)

    def _read_sealed(self, name: str) -> bytes:
        """Return a file's content without its checksum; empty if it is damaged or not there."""
        seal, _, content = (self.store.read(name) or b"").partition(b"\n")
        return content if seal == xxhash.xxh3_128_hexdigest(content).encode() else b""

    def _read_json(self, name: str) -> dict[str, Any] | None:
        content = self.store.read(name)
        if content is None:
            return None
        try:
            found: dict[str, Any] = msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise JobError(f"{self.location}/{name}: damaged: {error}") from None
        return found


def job_digest(settings: Mapping[str, Any]) -> str:
    """Return the digest of a job's settings, whatever their order."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(settings, order="deterministic"))


def _sealed(content: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(content).encode() + b"\n" + content


def _rows_ahead_of(checkpoint: str) -> str:
    return _ROWS_AHEAD + checkpoint.removeprefix(_CHECKPOINT)


def _token_of(name: str) -> int:
    return int(name.removeprefix(_CHECKPOINT).partition("-")[0])


def _number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()[:80]
