import itertools

import pytest

from rayinfer.errors import ConfigError
from rayinfer.jobs.interfaces import Position
from rayinfer.jobs.shards import RowsOfData, ShardedData, ShardedStream


@pytest.mark.parametrize("mode", ["sequential", "chunked"])
def test_shards_of_sized_data_hold_every_element_once(mode):
    for size, num_shards in itertools.product(range(41), range(1, 10)):
        shards = [ShardedData(range(size), shard, num_shards, mode) for shard in range(num_shards)]
        elements = [element for shard in shards for element in shard]
        assert sorted(elements) == list(range(size)), (size, num_shards)
        assert [len(shard) for shard in shards] == [len(list(shard)) for shard in shards]
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
        assert all(shard.index_in_data(at) == value for shard in shards for at, value in enumerate(shard))
        if mode == "chunked":
            assert elements == list(range(size))


@pytest.mark.parametrize("chunk_size", [1, 3, 50])
def test_shards_of_streams_hold_every_element_once(chunk_size):
    for size, num_shards in itertools.product(range(41), range(1, 10)):
        streams = [ShardedStream(iter(range(size)), shard, num_shards, chunk_size) for shard in range(num_shards)]
        assert sorted(element for stream in streams for element in stream) == list(range(size))


def test_wrong_shards_are_refused():
    for shard, num_shards in ((0, 0), (2, 2), (-1, 2)):
        with pytest.raises(ConfigError):
            ShardedData([], shard, num_shards)
        with pytest.raises(ConfigError):
            ShardedStream([], shard, num_shards)
    with pytest.raises(ConfigError, match="chunk_size"):
        ShardedStream([], 0, 1, 0)


def test_rows_of_data_go_on_after_a_position():
    source = RowsOfData(ShardedData([{"name": f"n{each}"} for each in range(7)], 1, 2), "d", id_column="name")
    rows = list(source.rows())
    assert [row.id for row in rows] == ["n1", "n3", "n5"]
    assert source.num_rows == 3
    assert [row.id for row in source.rows(rows[0].end)] == ["n3", "n5"]
    assert list(source.rows(Position(2, 3))) == []
    assert next(RowsOfData(["a"], "d").rows()).data == {"input": "a"}
