"""Locations of test files, local or in fsspec's memory."""

from pathlib import Path

import fsspec


def write_file(place: str, folder: Path, name: str, content: bytes) -> str:
    """Write a file to a place, and return its location."""
    if place == "local":
        (folder / name).write_bytes(content)
        return str(folder / name)
    location = f"memory:/{folder}/{name}"
    with fsspec.open(location, "wb") as file:
        file.write(content)
    return location
