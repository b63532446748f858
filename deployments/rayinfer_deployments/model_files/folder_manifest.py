"""Manifest of a model folder: its files, with their sizes and times, and pieces of them with their digests."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rayinfer.errors import ModelLoadError

PIECE_BYTES = 8 * 2**20
DIGEST_BYTES = 32
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".data")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """One file of a folder."""

    name: str  # relative to the folder
    size: int  # bytes
    modified_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderManifest:
    """The files of a model folder, or those of them that routers read."""

    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def identity(self) -> str:
        """Return a name of these files: others, or changed ones, have another."""
        listed = "\n".join(f"{file.name} {file.size} {file.modified_ns}" for file in self.files)
        return hashlib.blake2b(listed.encode(), digest_size=8).hexdigest()

    def pieces(self) -> Iterator["PieceRange"]:
        """List the pieces of all files, in order."""
        for file in self.files:
            for offset in range(0, file.size, PIECE_BYTES):
                yield PieceRange(name=file.name, offset=offset, size=min(PIECE_BYTES, file.size - offset))


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceRange:
    """A piece's place in a file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece's data, with the digest that the node that read it has computed."""

    data: bytes
    digest: bytes


def manifest_of(folder: Path, *, with_weights: bool) -> FolderManifest:
    """List a folder's files, those below it too; hidden ones are left out."""
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if is_hidden or not path.is_file() or (path.suffix in WEIGHT_SUFFIXES and not with_weights):
            continue
        status = path.stat()
        files.append(ModelFile(name=str(name), size=status.st_size, modified_ns=status.st_mtime_ns))
    return FolderManifest(files=tuple(files))


def read_piece(folder: Path, place: PieceRange) -> Piece:
    """Read a piece; raises ModelLoadError where the file is not as it was."""
    try:
        with (folder / place.name).open("rb") as file:
            file.seek(place.offset)
            data = file.read(place.size)
    except OSError as error:
        raise ModelLoadError(f"{folder / place.name} cannot be read for another node: {error}") from None
    if len(data) != place.size:
        raise ModelLoadError(f"{folder / place.name} has changed while another node read it")
    return Piece(data=data, digest=digest_of(data))


def digest_of(data: bytes) -> bytes:
    """Compute a piece's digest."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
