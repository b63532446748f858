"""Sinks: the same bytes whenever checkpoints were made, and outputs that verification reads."""

import gzip
import json
import sqlite3

import pytest

from rayinfer.jobs.interfaces import SinkError
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sinks.formats import open_sink
from rayinfer.jobs.sources.formats import open_source
from rayinfer.jobs.verify import verify_job

OUTPUTS = ["out.jsonl", "out.jsonl.gz", "parts.jsonl/", "parts.jsonl.gz/", "out.sqlite", "memory"]
ROWS = [{"id": str(n), "text": "é" * n, "usage": {"tokens": n}, "error": "bad" if n == 5 else None} for n in range(10)]


def location_of(folder, output):
    return f"memory:/{folder}/out.jsonl" if output == "memory" else f"{folder}/{output}"


def write_all(location, flush_after=(), num_rows=10):
    sink = open_sink(location, rows_per_part=4)
    sink.open(None)
    for number, row in enumerate(ROWS[:num_rows]):
        sink.write([row])
        if number in flush_after:
            offset = sink.flush()
            sink.close()
            sink = open_sink(location, rows_per_part=4)
            sink.open(offset)
    described = sink.finalize()
    sink.clean_up()
    sink.close()
    return described


def committed(folder, described):
    progress = ProgressFolder(folder / "progress")
    progress.commit({"output": described})
    return progress


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": row["id"]}) + "\n" for row in ROWS))
    return open_source(tmp_path / "in.jsonl")


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_output_does_not_depend_on_the_checkpoints(output, source, tmp_path):
    plain = write_all(location_of(tmp_path / "plain", output))
    resumed = write_all(location_of(tmp_path / "resumed", output), flush_after=(0, 1, 3, 5, 6, 9))
    assert resumed == plain  # digests among it
    verified = verify_job(source, location_of(tmp_path / "resumed", output), committed(tmp_path, resumed))
    assert verified.is_right, verified.problems
    assert verified.num_rows == 10


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_input_without_rows_has_an_output(output, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    location = location_of(tmp_path, output)
    described = write_all(location, num_rows=0)
    assert verify_job(open_source(tmp_path / "empty.jsonl"), location, committed(tmp_path, described)).is_right


def test_lines_are_compact_and_keys_keep_their_order(tmp_path):
    write_all(tmp_path / "out.jsonl", num_rows=2)
    assert (tmp_path / "out.jsonl").read_text().splitlines()[
        1
    ] == '{"id":"1","text":"é","usage":{"tokens":1},"error":null}'
    write_all(tmp_path / "out.jsonl.gz", num_rows=2)
    assert gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()) == (tmp_path / "out.jsonl").read_bytes()


def test_a_database_has_ids_errors_and_whole_rows(tmp_path):
    write_all(tmp_path / "out.sqlite")
    database = sqlite3.connect(tmp_path / "out.sqlite")
    assert database.execute(
        "SELECT number, id, error, row ->> '$.usage.tokens' FROM rows WHERE error NOTNULL"
    ).fetchall() == [(5, "5", "bad", 5)]
    database.close()


def test_nothing_of_the_output_has_its_name_before_the_end(tmp_path):
    for output in ("out.jsonl", "out.jsonl.gz", "out.sqlite"):
        sink = open_sink(tmp_path / output)
        sink.open(None)
        sink.write(ROWS)
        sink.flush()
        assert not (tmp_path / output).exists()
        sink.close()


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_job_that_ended_between_output_and_record_finishes_again(output, tmp_path):
    location = location_of(tmp_path, output)
    sink = open_sink(location, rows_per_part=4)
    sink.open(None)
    sink.write(ROWS)
    offset = sink.flush()
    first = sink.finalize()
    sink.close()
    again = open_sink(location, rows_per_part=4)
    again.open(offset)
    assert again.finalize() == first
    again.close()


@pytest.mark.parametrize("fence", [False, True])
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_job_killed_again_and_again_before_its_checkpoint_goes_on_from_the_one_before(output, fence, tmp_path):
    location = location_of(tmp_path, output)
    sink = open_sink(location, rows_per_part=2)
    sink.open(None)
    sink.write(ROWS[:3])
    offset = sink.flush()
    for num_flushed in (9, 7, 5, 3):  # at other rows each time: checkpoints are due by time, too
        sink.write(ROWS[3:num_flushed])
        sink.flush()  # and killed
        sink.close()
        sink = open_sink(location, rows_per_part=2)
        sink.open(offset, fence=fence)
    sink.write(ROWS[3:])
    sink.flush()
    described = sink.finalize()
    sink.clean_up()
    sink.close()
    (tmp_path / "plain").mkdir()
    undisturbed = open_sink(location_of(tmp_path / "plain", output), rows_per_part=2)
    undisturbed.open(None)
    undisturbed.write(ROWS)
    assert undisturbed.finalize() == described
    undisturbed.close()


@pytest.mark.parametrize("output", ["out.jsonl", "parts.jsonl/", "out.sqlite"])
def test_verification_finds_what_is_wrong(output, source, tmp_path):
    location = location_of(tmp_path, output)
    assert "no commit record" in verify_job(source, location, ProgressFolder(tmp_path / "new")).problems[0]
    progress = committed(tmp_path, write_all(location, num_rows=9))
    assert verify_job(source, location, progress).problems == ["row 9 ('9') is missing at the end"]
    changed = tmp_path / ("parts.jsonl/part-000001.jsonl" if output == "parts.jsonl/" else output)
    changed.write_bytes(changed.read_bytes().replace(b'"id":"7"', b'"id":"6"'))
    problems = verify_job(source, location, progress).problems
    assert "was changed" in problems[0]
    if output != "out.sqlite":  # its ids have a column of their own
        assert problems[1] == "row 7 has the id '6' instead of '7'"
    changed.unlink()
    assert "missing" in (gone := verify_job(source, location, progress).problems)[0] or "has 2 parts" in gone[0]


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("out.data", {}, "its ending names no format"),
        ("out.data", {"format": "xml"}, "format must be one of jsonl, parquet, sqlite"),
        ("out.parquet.gz", {}, "Parquet is compressed in itself"),
        ("out.sqlite.gz", {}, "one local file, not compressed"),
        ("out.jsonl/", {"rows_per_part": -1}, "rows_per_part must be at least 1"),
    ],
)
def test_outputs_that_cannot_be_are_refused(output, options, message, tmp_path):
    with pytest.raises(SinkError, match=message):
        open_sink(f"{tmp_path}/{output}", **options)


def test_another_size_of_parts_is_refused_on_resuming(tmp_path):
    sink = open_sink(tmp_path / "out.jsonl.gz", rows_per_part=4)
    sink.open(None)
    offset = sink.flush()
    sink.close()
    with pytest.raises(SinkError, match="begun with parts of 4 rows, not 5"):
        open_sink(tmp_path / "out.jsonl.gz", rows_per_part=5).open(offset)


def test_values_that_json_has_no_form_for_are_refused_with_their_row(tmp_path):
    sink = open_sink(tmp_path / "out.jsonl")
    sink.open(None)
    with pytest.raises(SinkError, match="rows from 'x' on cannot be written as JSON: object has no form in JSON"):
        sink.write([{"id": "x", "value": object()}])
    sink.close()
