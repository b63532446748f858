"""Generations of an unfinished file: a fenced writer goes on in a copy, out of reach of the writer before."""

import re
import shutil
from pathlib import Path

from rayinfer.jobs.storage.disk import Disk


class Generations:
    """Unfinished files beside their final one, `.NAME.partial-N`."""

    def __init__(self, final: Path, disk: Disk) -> None:
        self._final = final
        self._disk = disk

    def path(self, generation: int) -> Path:
        """Return the path of a generation."""
        return self._final.with_name(f".{self._final.name}.partial-{generation}")

    def existing(self) -> list[int]:
        """Return the generations that are there, from the first."""
        pattern = re.compile(re.escape(f".{self._final.name}.partial-") + r"(\d+)")
        if not self._final.parent.is_dir():
            return []
        found = (pattern.fullmatch(path.name) for path in self._final.parent.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def next(self) -> int:
        """Return the number of a new generation."""
        return max(self.existing(), default=0) + 1

    def copy(self, source: Path) -> int:
        """Copy a file into a new generation, durably, and return its number."""
        generation = self.next()
        target = self.path(generation)
        with source.open("rb") as old, target.open("wb", buffering=0) as new:
            shutil.copyfileobj(old, new, 1 << 20)
            self._disk.sync(new)
        self._disk.sync_folder(target.parent)
        return generation

    def remove(self, keep: int | None = None) -> None:
        """Remove all generations, or all others."""
        for generation in self.existing():
            if generation != keep:
                self._disk.remove(self.path(generation))
