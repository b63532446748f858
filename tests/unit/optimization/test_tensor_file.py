import json

import pytest
import torch

from rayinfer.optimization.tensor_file import DATA_FILE, INDEX_FILE, StoredTensors, read_tensors, write_tensors

TENSORS = {
    "panels": torch.arange(-60, 60, dtype=torch.int8).view(2, 3, 20),
    "scales": torch.linspace(-1, 1, 7),
    "norm": torch.linspace(0, 3, 5).bfloat16(),
    "nothing": torch.empty(0, 4),
    "one": torch.tensor(2.5),
}
STORED = StoredTensors(TENSORS, {"format": "INT8", "sizes": [1, 2], "gated": True})


@pytest.fixture
def written(tmp_path):
    write_tensors(tmp_path, STORED)
    return tmp_path


def test_what_is_written_is_read_to_the_bit(written):
    read = read_tensors(written)
    assert read.notes == STORED.notes
    assert list(read.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert read.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.tensors[name], tensor)


def test_every_tensor_begins_on_a_cache_line_of_the_mapped_file(written):
    assert all(tensor.data_ptr() % 64 == 0 for tensor in read_tensors(written).tensors.values() if tensor.numel())


def test_what_is_written_into_a_tensor_stays_in_this_process(written):
    read_tensors(written).tensors["scales"].zero_()
    assert torch.equal(read_tensors(written).tensors["scales"], TENSORS["scales"])


def test_a_view_with_gaps_is_written_as_it_looks(tmp_path):
    view = torch.arange(12).view(3, 4).T[1:3]
    write_tensors(tmp_path, StoredTensors({"view": view}, {}))
    assert torch.equal(read_tensors(tmp_path).tensors["view"], view)


def flip_a_bit_of_the_data(folder):
    data = bytearray((folder / DATA_FILE).read_bytes())
    data[-1] ^= 1
    (folder / DATA_FILE).write_bytes(data)


def cut_the_data(folder):
    (folder / DATA_FILE).write_bytes((folder / DATA_FILE).read_bytes()[:-1])


def empty_the_data(folder):
    (folder / DATA_FILE).write_bytes(b"")


def lose_the_data(folder):
    (folder / DATA_FILE).unlink()


def lose_the_index(folder):
    (folder / INDEX_FILE).unlink()


def break_the_index(folder):
    (folder / INDEX_FILE).write_text('{"digest": "')


def put_another_index_there(folder):
    (folder / INDEX_FILE).write_text("[1, 2]")


def change_the_index(folder):
    index = json.loads((folder / INDEX_FILE).read_text())
    index["contents"]["notes"]["format"] = "INT4_DYNAMIC"
    (folder / INDEX_FILE).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit_of_the_data,
        cut_the_data,
        empty_the_data,
        lose_the_data,
        lose_the_index,
        break_the_index,
        put_another_index_there,
        change_the_index,
    ],
)
def test_what_is_not_whole_is_not_read(written, damage):
    damage(written)
    assert read_tensors(written) is None


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert read_tensors(tmp_path / "nowhere") is None
