"""Data-parallel shards of data sets: every element in exactly one shard, none twice, whatever their number."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from rayinfer.errors import ConfigError
from rayinfer.jobs.interfaces import Position, Row

Element = TypeVar("Element")
ShardMode = Literal["sequential", "chunked"]


def check_shard(shard: int, num_shards: int) -> None:
    """Raise ConfigError unless the shard is one of so many."""
    if num_shards < 1:
        raise ConfigError(f"num_shards must be at least 1, got {num_shards}")
    if not 0 <= shard < num_shards:
        raise ConfigError(f"shard must be from 0 to {num_shards - 1}, got {shard}")


@dataclass(frozen=True, slots=True)
class ShardedData(Sequence[Element], Generic[Element]):
    """One shard of sized data.

    "sequential" deals elements out one by one; "chunked" gives each shard a run of them, the first ones longer by one
    where they do not divide.
    """

    data: Sequence[Element]
    shard: int
    num_shards: int
    mode: ShardMode = "sequential"

    def __post_init__(self) -> None:
        check_shard(self.shard, self.num_shards)
        if self.mode not in ("sequential", "chunked"):
            raise ConfigError(f"mode must be sequential or chunked, got {self.mode!r}")

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.data[each] for each in self._indices[index]]
        return self.data[self._indices[index]]

    def index_in_data(self, index: int) -> int:
        """Return the place in the whole data of the shard's element."""
        return self._indices[index]

    @property
    def _indices(self) -> range:
        size = len(self.data)
        if self.mode == "sequential":
            return range(self.shard, size, self.num_shards)
        share, longer = divmod(size, self.num_shards)
        start = self.shard * share + min(self.shard, longer)
        return range(start, start + share + (self.shard < longer))


@dataclass(frozen=True, slots=True)
class ShardedStream(Generic[Element]):
    """One shard of data without a size: elements, or with `chunk_size` runs of so many, are dealt out in turn."""

    data: Iterable[Element]
    shard: int
    num_shards: int
    chunk_size: int = 1

    def __post_init__(self) -> None:
        check_shard(self.shard, self.num_shards)
        if self.chunk_size < 1:
            raise ConfigError(f"chunk_size must be at least 1, got {self.chunk_size}")

    def __iter__(self) -> Iterator[Element]:
        for index, element in enumerate(self.data):
            if index // self.chunk_size % self.num_shards == self.shard:
                yield element


@dataclass(frozen=True, slots=True)
class RowsOfData:
    """RowSource of a sequence in memory, of mappings or of values, which become the column `input`.

    `digest` names the data: a job that is resumed must find the same. Ids are the column `id_column`, or indices.
    """

    data: Sequence[Any]
    digest: str
    id_column: str | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.data)

    def rows(self, after: Position | None = None) -> Iterator[Row]:
        """Yield the rows after a position."""
        for index in range(0 if after is None else after.index + 1, len(self.data)):
            element = self.data[index]
            data = dict(element) if isinstance(element, dict) else {"input": element}
            row_id = str(index) if self.id_column is None else str(data[self.id_column])
            yield Row(index, row_id, data, index + 1)
