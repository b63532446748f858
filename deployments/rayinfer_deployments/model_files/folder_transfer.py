"""Transfer of a model folder from another node: bounded pieces, verified, into a folder that appears when whole."""

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rayinfer.config import DEFAULT_MODEL_COPIES_BYTES
from rayinfer.errors import ModelLoadError
from rayinfer_deployments.model_files.folder_manifest import FolderManifest, Piece, PieceRange, digest_of
from rayinfer_deployments.model_files.received_entries import (
    NAME_FILE,
    PART_NAMES,
    delete_unfinished,
    list_received,
    lock_of,
    shrink_received,
    unfinished_of,
    use_until_exit,
)

MAX_IN_FLIGHT = 3  # pieces that are asked for before the first has arrived
SPARE_BYTES = 1 << 30  # of disk space that others are left


class PieceSource(Protocol):
    """Another node's folder."""

    def ask(self, place: PieceRange) -> Callable[[], Piece]:
        """Ask for a piece; the result waits for it, and raises ModelLoadError where the node is lost."""
        ...


class ReceivedFolders:
    """Folders below one of this node's cache, each received once for all of its processes.

    Where they take more than `max_bytes`, or the disk is full, the least recently used ones that no process uses are
    deleted.
    """

    def __init__(self, root: Path, *, max_bytes: int = DEFAULT_MODEL_COPIES_BYTES) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def newest(self, model: str, *, with_weights: bool) -> Path | None:
        """Return the folder of a model that was received or used last, if any."""
        whole = [path for path in self._parent(model, with_weights).glob("[!.]*") if path.is_dir()]
        return max(whole, key=lambda path: path.stat().st_mtime_ns, default=None)

    def receive(self, model: str, manifest: FolderManifest, source: PieceSource, *, with_weights: bool) -> Path:
        """Return the folder of these files, kept until this process ends; fetches them where none of this node has.

        Raises ModelLoadError when a piece is not what its node has read, when a name leads out of the folder, or when
        the disk is full.
        """
        folder = self._parent(model, with_weights) / manifest.identity
        unfinished = unfinished_of(folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            (folder.parent.parent / NAME_FILE).write_text(model)
            with lock_of(folder):
                if not folder.is_dir():
                    shutil.rmtree(unfinished, ignore_errors=True)
                    self._make_room(manifest.size)
                    unfinished.mkdir()
                    try:
                        _fetch(manifest, source, unfinished)
                        unfinished.rename(folder)
                    finally:
                        shutil.rmtree(unfinished, ignore_errors=True)
                use_until_exit(folder)
        except OSError as error:
            raise ModelLoadError(f"{folder} cannot be written: {error}") from None
        return folder

    def _make_room(self, num_bytes: int) -> None:
        """Delete what no process uses until a folder of this size fits; what is in use stays, whatever the limit."""
        delete_unfinished(self._root)
        held = sum(entry.num_bytes for entry in list_received(self._root))
        lacking = num_bytes + SPARE_BYTES - shutil.disk_usage(self._root).free
        shrink_received(self._root, min(self._max_bytes - num_bytes, held - lacking))

    def _parent(self, model: str, with_weights: bool) -> Path:
        name = hashlib.blake2b(model.encode(), digest_size=8).hexdigest()
        return self._root / name / PART_NAMES[with_weights]


def _fetch(manifest: FolderManifest, source: PieceSource, out: Path) -> None:
    for file in manifest.files:
        target = out / file.name
        if not target.resolve().is_relative_to(out.resolve()):
            raise ModelLoadError(f"another node names a file outside of the model's folder: {file.name!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    coming: deque[tuple[PieceRange, Callable[[], Piece]]] = deque()
    places = manifest.pieces()
    while True:
        while len(coming) < MAX_IN_FLIGHT and (place := next(places, None)) is not None:
            coming.append((place, source.ask(place)))
        if not coming:
            break
        place, arrived = coming.popleft()
        _write(out, place, arrived())
    for file in manifest.files:
        os.utime(out / file.name, ns=(file.modified_ns, file.modified_ns))


def _write(out: Path, place: PieceRange, piece: Piece) -> None:
    if len(piece.data) != place.size or digest_of(piece.data) != piece.digest:
        raise ModelLoadError(f"a piece of {place.name} at {place.offset} was changed on its way from another node")
    with (out / place.name).open("r+b") as file:
        file.seek(place.offset)
        file.write(piece.data)
