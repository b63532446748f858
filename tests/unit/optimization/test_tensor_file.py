import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from rayinfer.optimization.packed_entries import DATA_FILE
from rayinfer.optimization.tensor_file import StoredTensors, read_tensors, write_tensors

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
    assert set(read.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert read.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.tensors[name], tensor)


def test_the_file_is_one_of_safetensors(written):
    loaded = load_file(written / DATA_FILE)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    with safe_open(written / DATA_FILE, "pt") as file:
        assert set(file.metadata()) == {"digest", "notes"}


def test_tensors_of_whole_cache_lines_begin_on_one(tmp_path):
    odd, even = torch.ones(3), torch.ones(32)
    write_tensors(tmp_path, StoredTensors({"odd": odd, "first": even, "other": odd, "second": even}, {}))
    read = read_tensors(tmp_path).tensors
    assert [read[name].data_ptr() % 64 for name in ("first", "second")] == [0, 0]


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


def break_the_header(folder):
    data = bytearray((folder / DATA_FILE).read_bytes())
    data[8] ^= 1
    (folder / DATA_FILE).write_bytes(data)


def change_the_notes(folder):
    data = (folder / DATA_FILE).read_bytes()
    (folder / DATA_FILE).write_bytes(data.replace(b"INT8", b"INT4", 1))


def change_a_shape(folder):
    data = (folder / DATA_FILE).read_bytes()
    assert b"[2, 3, 20]" in data
    (folder / DATA_FILE).write_bytes(data.replace(b"[2, 3, 20]", b"[3, 2, 20]", 1))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit_of_the_data,
        cut_the_data,
        empty_the_data,
        lose_the_data,
        break_the_header,
        change_the_notes,
        change_a_shape,
    ],
)
def test_what_is_not_whole_is_not_read(written, damage):
    damage(written)
    assert read_tensors(written) is None


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert read_tensors(tmp_path / "nowhere") is None
