"""Disk that loses power at a chosen operation, and with it all that was not synced."""

from pathlib import Path
from typing import BinaryIO

from rayinfer.jobs.storage.disk import Disk


class PowerCut(Exception):
    """The power was cut."""


class PowerCutDisk(Disk):
    """Disk over folders of a test; nothing is really synced, but what was is remembered by inode and by name."""

    def __init__(self, root: Path, cut_at: int = 0) -> None:
        self.root = root
        self.cut_at = cut_at
        self.operations: list[str] = []
        self._content = {path.stat().st_ino: path.read_bytes() for path in _files(root)}
        self._names = {path: path.stat().st_ino for path in _files(root)}

    def write(self, file: BinaryIO, data: bytes) -> None:
        if self._is_cut("write"):
            file.write(data[: len(data) // 2])
            raise PowerCut
        super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        self._count("sync")
        file.flush()
        path = Path(file.name)
        self._content[path.stat().st_ino] = path.read_bytes()

    def truncate(self, file: BinaryIO, size: int) -> None:
        self._count("truncate")
        super().truncate(file, size)

    def replace(self, source: Path, target: Path) -> None:
        self._count("replace")
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._count("link")
        super().link(source, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._count("remove")
            super().remove(path)

    def sync_folder(self, folder: Path) -> None:
        self._count("sync_folder")
        kept = {path: inode for path, inode in self._names.items() if path.parent != folder}
        self._names = kept | {path: path.stat().st_ino for path in folder.iterdir() if path.is_file()}

    def lose_unsynced(self) -> None:
        """Restore the names and contents that were durable."""
        for path in _files(self.root):
            path.unlink()
        for path, inode in self._names.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._content.get(inode, b""))

    def _count(self, operation: str) -> None:
        if self._is_cut(operation):
            raise PowerCut

    def _is_cut(self, operation: str) -> bool:
        self.operations.append(operation)
        return len(self.operations) == self.cut_at


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]
