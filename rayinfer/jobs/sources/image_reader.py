"""Reader of image files: a row for each, with its path or URL; the image is read when it is computed."""

from collections.abc import Iterator, Sequence

from rayinfer.jobs.sources.input_files import InputFile
from rayinfer.jobs.sources.record_readers import Record, Start


class ImageReader:
    """Image files as records with the one column `path`."""

    columns = ("path",)

    def __init__(self, files: Sequence[InputFile]) -> None:
        self.files = files
        self.num_records = len(files)

    def read(self, start: Start, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield the records from an index on."""
        for index in range(start.index, len(self.files)):
            yield Record({"path": self.files[index].name}, index + 1)
