"""Sources: rows, ids, errors and positions of every format that needs no further package."""

import gzip
from pathlib import Path

import pytest

from rayinfer.jobs.interfaces import SourceError
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sources.formats import open_source
from support.jobs.location_of import write_file


def rows_of(location, **options):
    return [(row.index, row.id, row.data, row.error) for row in open_source(location, **options).rows()]


FILES = {
    "in.jsonl": b'{"id":"a","prompt":"one"}\n\n{"id":"b","prompt":"two"}\n  \nnothing\n[1]\n'
    b'{"prompt":"no id"}\n{"id":7}',
    "in.csv": b'id,text\r\na,"two\r\nlines"\r\nb,"quoted "" mark"\r\nc\r\nd,\xff\r\n"e" x,y\r\nf,"last',
    "in.tsv": b"id\ttext\na\tone\n\nb\ttwo\n",
    "in.txt": "erste\n\nzweite ü\r\n".encode() + b"\xff\nlast",
}


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.parametrize("name", FILES)
def test_reading_goes_on_after_any_row(name, compression, place, tmp_path):
    content = gzip.compress(FILES[name]) if compression else FILES[name]
    first = write_file(place, tmp_path, f"first-{name}{compression}", content)
    write_file(place, tmp_path, f"second-{name}{compression}", content)
    source = open_source(first.replace("first-", "*-"))
    rows = list(source.rows())
    assert len(rows) == source.num_rows >= 4
    for row in rows:
        assert list(source.rows(row.end)) == rows[row.index + 1 :]


def test_rows_that_cannot_be_read_become_errors_and_keep_their_place(tmp_path):
    path = write_file("local", tmp_path, "in.jsonl", FILES["in.jsonl"])
    assert rows_of(path, id_column="id") == [
        (0, "a", {"id": "a", "prompt": "one"}, None),
        (1, "b", {"id": "b", "prompt": "two"}, None),
        (2, "row-2", {}, "no JSON object: JSON is malformed: invalid character (byte 4)"),
        (3, "row-3", {}, "no JSON object but an array"),
        (4, "row-4", {"prompt": "no id"}, "has no id"),
        (5, "7", {"id": 7}, None),
    ]


def test_csv_keeps_quoted_lines_and_names_what_is_wrong(tmp_path):
    rows = rows_of(write_file("local", tmp_path, "in.csv", FILES["in.csv"]), id_column="")
    assert [(data, error) for _, _, data, error in rows] == [
        ({"id": "a", "text": "two\r\nlines"}, None),
        ({"id": "b", "text": 'quoted " mark'}, None),
        ({}, "1 values for 2 columns"),
        ({}, "not UTF-8"),
        ({}, "no CSV: ',' expected after '\"'"),
        ({}, "no CSV: unexpected end of data"),
    ]


def test_lines_of_text_have_one_column(tmp_path):
    rows = rows_of(write_file("local", tmp_path, "in.txt", FILES["in.txt"]))
    assert rows == [
        (0, "0", {"text": "erste"}, None),
        (1, "1", {"text": "zweite ü"}, None),
        (2, "2", {}, "not UTF-8"),
        (3, "3", {"text": "last"}, None),
    ]


@pytest.mark.parametrize(
    ("lines", "ids"),
    [
        (['{"custom_id":"x","id":1}', '{"custom_id":"y","id":2}'], ["x", "y"]),
        (['{"custom_id":"x","id":1}', '{"id":2}'], ["1", "2"]),
        (['{"id":1}', "{}"], ["0", "1"]),
        (['{"id":true}', '{"id":false}'], ["0", "1"]),
    ],
)
def test_ids_come_from_the_first_known_column_that_every_row_has(lines, ids, tmp_path):
    path = write_file("local", tmp_path, "in.jsonl", "\n".join(lines).encode())
    assert [row.id for row in open_source(path).rows()] == ids


def test_a_second_row_with_the_same_id_is_an_error_and_ids_stay_unique(tmp_path):
    path = write_file("local", tmp_path, "in.jsonl", b'{"id":"a"}\n{"id":"b"}\n{"id":"a"}\n{"id":"a"}\n')
    rows = rows_of(path)
    assert [row[1] for row in rows] == ["a", "b", "row-2", "row-3"]
    assert [row[3] for row in rows] == [None, None, "id 'a' is that of row 0, too", "id 'a' is that of row 0, too"]


def test_a_column_that_names_no_rows_is_refused(tmp_path):
    path = write_file("local", tmp_path, "in.jsonl", b'{"id":"a"}\n' * 6000)
    with pytest.raises(SourceError, match="more than 5000 of its values occur twice"):
        open_source(path)


def test_ids_are_looked_through_once_and_again_if_the_input_changes(tmp_path):
    path = Path(write_file("local", tmp_path, "in.jsonl", b'{"id":"a"}\n{"id":"a"}\n'))
    store = ProgressFolder(tmp_path / "progress")
    first = open_source(path, scan_store=store)
    kept = store.read("input.json")
    assert kept is not None
    store.write("input.json", kept.replace(b'"num_rows":2', b'"num_rows":12'))
    assert open_source(path, scan_store=store).num_rows == 12  # read, not counted
    path.write_bytes(b'{"id":"a"}\n{"id":"a"}\n{"id":"c"}\n')
    changed = open_source(path, scan_store=store)
    assert changed.num_rows == 3
    assert changed.digest != first.digest


def test_batch_requests_are_checked(tmp_path):
    lines = [
        '{"custom_id":"1","method":"POST","url":"/v1/completions","body":{}}',
        '{"custom_id":"2","method":"GET","url":"/v1/completions","body":{}}',
        '{"custom_id":"3","method":"POST","url":"/v1/completions"}',
    ]
    path = write_file("local", tmp_path, "in.jsonl", "\n".join(lines).encode())
    assert [(row[1], row[3]) for row in rows_of(path, format="openai")] == [
        ("1", None),
        ("2", "method of a batch request must be POST, got 'GET'"),
        ("3", "body of a batch request must be an object"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    path = write_file("local", tmp_path, "in.jsonl", b'\xef\xbb\xbf{"id":"a"}\n{"id":"b"}\n')
    source = open_source(path)
    rows = list(source.rows())
    assert [row.id for row in rows] == ["a", "b"]
    assert [row.id for row in source.rows(rows[0].end)] == ["b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.data", b"", "its ending names no format"),
        ("in.jsonl.gz", b"no gzip", "damaged after byte 0"),
        ("cut.jsonl.gz", gzip.compress(b'{"id":1}\n' * 100, mtime=0)[:-9], "damaged after byte"),
        ("in.csv", b"", "its first line names no columns"),
        ("twice.csv", b"a,a\n1,2\n", "two of its columns have the same name"),
    ],
)
def test_inputs_that_cannot_be_read_are_refused_by_name(name, content, message, tmp_path):
    path = write_file("local", tmp_path, name, content)
    with pytest.raises(SourceError, match=message) as refused:
        list(open_source(path).rows())
    assert name in str(refused.value)


@pytest.mark.parametrize("location", ["/nowhere/in.jsonl", "memory://nowhere/in.jsonl"])
def test_missing_inputs_are_refused(location):
    with pytest.raises(SourceError, match="no such file"):
        open_source(location)


def test_unknown_stores_and_formats_are_refused(tmp_path):
    with pytest.raises(SourceError, match="Protocol not known: nothing"):
        open_source("nothing://bucket/in.jsonl")
    with pytest.raises(SourceError, match="format must be one of"):
        open_source(tmp_path, format="xml")


def test_the_files_of_a_folder_are_read_in_the_order_of_their_names(tmp_path):
    for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl", "_pending.jsonl", "notes.md"):
        write_file("local", tmp_path, name, b'{"name":"%s"}\n' % name.encode())
    assert [row[2]["name"] for row in rows_of(tmp_path)] == ["a.jsonl", "b.jsonl"]


def test_a_folder_of_images_has_a_row_for_each(tmp_path):
    for name in ("b.png", "a.jpg", ".hidden.png", "c/d.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"image")
    source = open_source(tmp_path)
    rows = list(source.rows())
    assert [row.data["path"] for row in rows] == [str(tmp_path / name) for name in ("a.jpg", "b.png", "c/d.webp")]
    assert list(source.rows(rows[0].end)) == rows[1:]
    assert source.num_rows == 3
