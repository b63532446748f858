"""Folders of adapters on disk: those of settings, which stay, and those below a watched folder, which come and go."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rayinfer.errors import shown
from rayinfer.kv_cache.adapter_id import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    FilesStamp,
    check_adapter_files,
    files_stamp,
    folder_digest,
)
from rayinfer.servers.adapters.adapter_name import MAX_NAME_CHARS, is_adapter_name
from rayinfer.servers.served_model import AdapterOrigin, ServedAdapter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFolders:
    """Folders of a model's adapters, from its start on."""

    base: str  # name of the model
    modules: Mapping[str, str] = field(default_factory=dict)  # folders by adapters' names
    watched: str | None = None  # a folder whose subfolders are adapters, by their names
    roots: tuple[str, ...] = ()  # folders below which operators may load some


class FolderScan:
    """Adapters of one model on disk, as the latest scan has found them."""

    def __init__(self, folders: AdapterFolders) -> None:
        self._folders = folders
        self._stamps: dict[str, FilesStamp] = {}  # of the latest scan, by folder
        self._known: dict[str, tuple[FilesStamp, ServedAdapter]] = {}  # by folder
        self._missing: set[str] = set()  # folders of settings that were not there
        self._warnings: dict[str, str] = {}  # the latest, by folder

    def scan(self, *, waits_for_rest: bool = True) -> dict[str, ServedAdapter]:
        """Return the adapters by name; it reads those that are new or have changed, so it may take long.

        A subfolder that is new counts once its files have been the same in two scans, as somebody may be writing them,
        unless the first scan of a process is not to wait. A folder of the settings is read once.
        """
        found: dict[str, ServedAdapter] = {}
        stamps: dict[str, FilesStamp] = {}
        for name, folder, origin in self._all():
            stamp = files_stamp(Path(folder))
            if stamp is None:
                self._note_missing(name, folder, origin)
                continue
            stamps[folder] = stamp
            if origin == "folder" and not is_adapter_name(name):
                self._warn_of_name(name, folder)
                continue
            known = self._known.get(folder)
            is_settled = origin == "settings" or not waits_for_rest or self._stamps.get(folder) == stamp
            if known is None or (origin == "folder" and known[0] != stamp):
                known = self._read(name, folder, origin, stamp) if is_settled else known
            if known is not None:
                found[name] = known[1]
        self._stamps = stamps
        self._known = {folder: known for folder, known in self._known.items() if folder in stamps}
        self._warnings = {folder: warning for folder, warning in self._warnings.items() if folder in stamps}
        return found

    def _all(self) -> Iterator[tuple[str, str, AdapterOrigin]]:
        if self._folders.watched is not None:
            for folder in _subfolders(Path(self._folders.watched)):
                yield folder.name, str(folder), "folder"
        for name, path in self._folders.modules.items():
            yield name, path, "settings"

    def _read(
        self, name: str, folder: str, origin: AdapterOrigin, stamp: FilesStamp
    ) -> tuple[FilesStamp, ServedAdapter] | None:
        try:
            digest = folder_digest(Path(folder))
        except OSError as error:
            self._warn(folder, f"adapter {name} cannot be read: {error}")
            return None
        if files_stamp(Path(folder)) != stamp:
            return self._known.get(folder)  # it is being written
        adapter = ServedAdapter(name=name, folder=folder, digest=digest, base=self._folders.base, origin=origin)
        self._known[folder] = (stamp, adapter)
        self._missing.discard(folder)
        self._warnings.pop(folder, None)
        return self._known[folder]

    def _note_missing(self, name: str, folder: str, origin: AdapterOrigin) -> None:
        if origin == "settings" and folder not in self._missing:
            self._missing.add(folder)
            logger.error("adapter %s is not served: %s has no %s and %s", name, folder, CONFIG_FILE, WEIGHTS_FILE)

    def _warn_of_name(self, name: str, folder: str) -> None:
        watched = shown(str(Path(folder).parent))
        rule = f"a name has 1 to {MAX_NAME_CHARS} letters, digits and . _ : -"
        self._warn(folder, f"subfolder {shown(name)} of {watched} is not served as an adapter: {rule}")

    def _warn(self, folder: str, warning: str) -> None:
        """Log a warning about a folder, once: scans come every few seconds."""
        if self._warnings.get(folder) != warning:
            self._warnings[folder] = warning
            logger.warning("%s", warning)


def has_adapter(folder: Path) -> bool:
    """Return whether a folder has both files of an adapter, and they can be read."""
    try:
        check_adapter_files(folder)
    except OSError:
        return False
    return True


def _subfolders(watched: Path) -> list[Path]:
    try:
        return sorted(path for path in watched.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []  # it is not there now
