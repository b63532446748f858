"""Lines of text files, plain or compressed, with the positions from which reading can go on."""

from collections.abc import Generator, Iterator, Sequence
from typing import IO, NamedTuple

from rayinfer.jobs.interfaces import SourceError
from rayinfer.jobs.sources.input_files import InputFile
from rayinfer.jobs.storage.compression import decompression_errors, open_decompressed, split_compression

_OFFSET_BITS = 48  # a position is the file's number above, and the offset in its uncompressed bytes below
_MARK = b"\xef\xbb\xbf"  # which editors of Windows put in front of UTF-8
_SKIP_BYTES = 1 << 20


class Line(NamedTuple):
    """Line of a file, with its end."""

    content: bytes
    position: int  # after the line


class OpenedFile(NamedTuple):
    """File from which lines are read, and where its first line starts."""

    file: InputFile
    stream: IO[bytes]
    number: int  # among the input's files
    offset: int


def lines_of(opened: OpenedFile) -> Iterator[Line]:
    """Yield the lines from where a file was opened."""
    offset, base = opened.offset, opened.number << _OFFSET_BITS
    try:
        for content in opened.stream:
            if offset == 0:
                offset = len(content)
                yield Line(content.removeprefix(_MARK), base + offset)
                continue
            offset += len(content)
            yield Line(content, base + offset)
    except decompression_errors() as error:
        raise SourceError(f"{opened.file.name}: damaged after byte {offset} of its content: {error}") from None
    except OSError as error:
        raise SourceError(f"{opened.file.name}: cannot be read: {error}") from None


def opened_files(files: Sequence[InputFile], position: int | None) -> Generator[OpenedFile]:
    """Open the files one after another from a position on."""
    first, offset = divmod(position or 0, 1 << _OFFSET_BITS)
    for number in range(first, len(files)):
        file = files[number]
        compression = split_compression(file.name)[1]
        with file.open() as raw, open_decompressed(raw, compression) as stream:
            if offset:
                _skip(stream, offset, file)
            yield OpenedFile(file, stream, number, offset)
        offset = 0


def _skip(stream: IO[bytes], offset: int, file: InputFile) -> None:
    if split_compression(file.name)[1] is None:
        stream.seek(offset)
        return
    while offset:  # compressed data can only be read forward
        skipped = len(stream.read(min(offset, _SKIP_BYTES)))
        if not skipped:
            raise SourceError(f"{file.name}: ends before the position of the checkpoint")
        offset -= skipped
