"""Local disk: the calls on which durability rests, in one object, so that tests can cut the power at each of them."""

import os
from pathlib import Path
from typing import BinaryIO


class Disk:
    """Durable operations on local files."""

    def write(self, file: BinaryIO, data: bytes) -> None:
        """Write all of the bytes."""
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]

    def sync(self, file: BinaryIO) -> None:
        """Make what was written to a file durable."""
        file.flush()
        os.fsync(file.fileno())

    def truncate(self, file: BinaryIO, size: int) -> None:
        """Cut a file, and go on writing at its new end."""
        file.truncate(size)
        file.seek(size)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over another; durable after `sync_folder`."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must be free."""
        os.link(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
