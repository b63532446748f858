from datetime import UTC, datetime

import pytest

from rayinfer.jobs.loop import rows_ahead
from rayinfer.jobs.loop.rows_ahead import decode_rows, encode_rows
from rayinfer.jobs.providers import RowOutput


def test_rows_come_back_as_they_were():
    columns = {"text": "é\n", "n": [1, -(2**62), 0.1, 1e300], "usage": {"b": None, "a": True}, "raw": b"\0"}
    rows = [RowOutput(index=7, columns=columns, prompt_tokens=3), RowOutput(index=2, error="not computable")]
    number, content = encode_rows(rows)
    back = decode_rows(content)
    assert number == 2
    assert back == {row.index: row for row in rows}
    assert list(back[7].columns["usage"]) == ["b", "a"]
    assert encode_rows([]) == (0, b"")
    assert decode_rows(b"") == {}


@pytest.mark.parametrize("value", [(1, 2), datetime(2026, 1, 1, tzinfo=UTC), 2**70, "\ud800", {1: 2}])
def test_rows_whose_values_would_change_are_computed_again(value):
    number, content = encode_rows([RowOutput(index=0, columns={"x": [value]}), RowOutput(index=1)])
    assert number == 1
    assert list(decode_rows(content)) == [1]


def test_kept_rows_are_bounded():
    rows = [RowOutput(index=index, columns={"text": "x" * 2**20}) for index in range(20)]
    number, content = encode_rows(rows)
    assert number == 15
    assert len(content) <= rows_ahead.MAX_BYTES
