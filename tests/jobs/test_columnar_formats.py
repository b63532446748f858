"""Parquet, Arrow data sets and Zstandard: rows, positions, and outputs cut at any operation."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from rayinfer.jobs.interfaces import SinkError, SourceError
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sinks.formats import open_sink
from rayinfer.jobs.sources.formats import open_source
from rayinfer.jobs.verify import verify_job
from support.fakes.power_cut_disk import PowerCut, PowerCutDisk
from support.jobs.copy_job import contents, copy_job

pytestmark = pytest.mark.jobs

ROWS = [
    {
        "id": f"r{n}",
        "prompt": "x" * n,
        "score": n / 4,
        "tags": ["a"] * (n % 3),
        "at": datetime(2026, 1, 1, n, tzinfo=UTC),
        "price": Decimal("1.50"),
        "raw": bytes([n]),
        "error": None if n < 9 else "bad",
    }
    for n in range(11)
]


def write_parquet(path, rows, row_group_size=3):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=row_group_size)


def save_dataset(folder, rows):
    """Write what `Dataset.save_to_disk` writes: streams of record batches, and their names."""
    import pyarrow

    folder.mkdir(parents=True)
    names = []
    for number, part in enumerate((rows[:5], rows[5:])):
        table = pyarrow.Table.from_pylist(part)
        names.append(f"data-{number:05d}-of-00002.arrow")
        with pyarrow.ipc.new_stream(str(folder / names[-1]), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_indices_data_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


@pytest.fixture(params=["file", "folder", "dataset", "splits", "memory", "zstd"])
def source(request, tmp_path):
    import fsspec
    import zstandard

    path = tmp_path / "in.parquet"
    match request.param:
        case "file":
            write_parquet(path, ROWS)
            return open_source(path)
        case "folder":
            (tmp_path / "hub").mkdir()
            for split, rows in (("test", ROWS[:2]), ("train", ROWS)):
                write_parquet(tmp_path / "hub" / f"{split}-00000-of-00001.parquet", rows)
            return open_source(tmp_path / "hub", split="train")
        case "dataset":
            save_dataset(tmp_path / "saved", ROWS)
            return open_source(tmp_path / "saved")
        case "splits":
            save_dataset(tmp_path / "saved/train", ROWS)
            (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train"]}')
            return open_source(tmp_path / "saved")
        case "memory":
            write_parquet(path, ROWS)
            with fsspec.open(f"memory:/{path}", "wb") as file:
                file.write(path.read_bytes())
            return open_source(f"memory:/{path}")
        case _:
            lines = [json.dumps(row, default=str).encode() + b"\n" for row in ROWS]
            frames = [zstandard.compress(b"".join(lines[:4])), zstandard.compress(b"".join(lines[4:]))]
            (tmp_path / "in.jsonl.zst").write_bytes(b"".join(frames))
            return open_source(tmp_path / "in.jsonl.zst")


def test_reading_goes_on_after_any_row(source):
    rows = list(source.rows())
    assert source.num_rows == 11
    assert [row.id for row in rows] == [row["id"] for row in ROWS]
    assert rows[3].data["score"] == 0.75
    for row in rows:
        assert list(source.rows(row.end)) == rows[row.index + 1 :]


def test_row_groups_before_the_position_are_not_read(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(path, ROWS)
    source = open_source(path)
    rows = list(source.rows())
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)  # of the first row group
    path.write_bytes(content)
    assert list(source.rows(rows[5].end)) == rows[6:]


def test_a_split_has_to_be_chosen(tmp_path):
    for split in ("test", "train"):
        write_parquet(tmp_path / f"{split}-00000-of-00001.parquet", ROWS)
    with pytest.raises(SourceError, match="has the splits test, train; choose one"):
        open_source(tmp_path)
    with pytest.raises(SourceError, match="dev is none of them"):
        open_source(tmp_path, split="dev")


def test_damaged_files_are_refused_by_name(tmp_path):
    (tmp_path / "in.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(SourceError, match=r"in\.parquet: cannot be read"):
        open_source(tmp_path / "in.parquet")
    save_dataset(tmp_path / "saved", ROWS)
    (tmp_path / "saved/state.json").write_text('{"_data_files": [], "_indices_data_files": [{"filename": "i"}]}')
    with pytest.raises(SourceError, match="flatten_indices"):
        open_source(tmp_path / "saved")


@pytest.mark.parametrize("loses_unsynced", [True, False], ids=["power cut", "killed"])
@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl.zst"])
def test_a_job_cut_at_any_operation_ends_with_the_same_bytes(output, loses_unsynced, tmp_path):
    input_path = tmp_path / "in.parquet"
    write_parquet(input_path, ROWS)
    (tmp_path / "undisturbed").mkdir()
    disk = PowerCutDisk(tmp_path / "undisturbed")
    copy_job(input_path, tmp_path / "undisturbed", output, disk)
    expected = contents(tmp_path / "undisturbed")
    for cut_at in range(1, len(disk.operations) + 1):
        root = tmp_path / f"cut-{cut_at}"
        root.mkdir()
        cut_disk = PowerCutDisk(root, cut_at)
        with pytest.raises(PowerCut):
            copy_job(input_path, root, output, cut_disk)
        if loses_unsynced:
            cut_disk.lose_unsynced()
        copy_job(input_path, root, output, PowerCutDisk(root))
        assert contents(root) == expected, f"cut at operation {cut_at}: {cut_disk.operations[-1]}"
        if cut_at % 10 == 0:
            verified = verify_job(open_source(input_path), root / output, ProgressFolder(root / "progress"))
            assert verified.is_right, verified.problems


def test_parquet_keeps_types_and_text_columns_that_begin_empty(tmp_path):
    import pyarrow.parquet

    sink = open_sink(tmp_path / "out.parquet", rows_per_part=4)
    sink.open(None)
    sink.write(ROWS[:6])
    offset = sink.flush()
    sink.open(offset)
    sink.write(ROWS[6:])
    sink.finalize()
    sink.clean_up()
    assert sorted(path.name for path in (tmp_path / "out.parquet").iterdir()) == [
        "_manifest.json",
        *(f"part-00000{n}.parquet" for n in range(3)),
    ]
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == ROWS


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"id": "b", "n": "text"}, "do not fit the columns"),
        ({"id": "b", "m": 1}, r"columns that earlier ones have not: \['m'\]"),
    ],
)
def test_rows_that_do_not_fit_the_first_part_are_refused(later, message, tmp_path):
    sink = open_sink(tmp_path / "out.parquet", rows_per_part=1)
    sink.open(None)
    sink.write([{"id": "a", "n": 1}])
    with pytest.raises(SinkError, match=message):
        sink.write([later])
