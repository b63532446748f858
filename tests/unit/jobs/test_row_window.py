import itertools

import pytest

from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.loop.row_window import RowWindow
from rayinfer.jobs.parameters import Window
from rayinfer.jobs.providers import RowOutput


def rows_of(prompts):
    return (Row(index, str(index), {"prompt": prompt}, index) for index, prompt in enumerate(prompts))


def window_over(prompts, **settings) -> RowWindow:
    return RowWindow(rows_of(prompts), Window(**settings), lambda row: row.data["prompt"])


def test_equal_beginnings_are_computed_together_and_the_longest_group_first():
    one, other = "a" * 70, "b" * 70
    prompts = [one + "x", "short", other + "long tail", one + "y", other]
    window = window_over(prompts, rows=10)
    order = [row.index for row in window.take(5)]
    assert order == [4, 2, 0, 3, 1]


def test_rows_leave_in_the_order_of_the_input():
    window = window_over("cab", rows=6)
    taken = [row.index for row in window.take(3)]
    window.end(RowOutput(index=taken[0]))
    left = [row.row.index for row in window.pop_finished()]
    for index in taken[1:]:
        window.end(RowOutput(index=index))
    left += [row.row.index for row in window.pop_finished()]
    assert left == [0, 1, 2]
    assert window.is_empty


def test_no_more_rows_are_read_than_the_window_holds():
    num_read = itertools.count()
    endless = (Row(index, str(index), {"prompt": "x"}, next(num_read)) for index in itertools.count())
    window = RowWindow(endless, Window(rows=8), lambda row: "")
    taken = []
    for _ in range(10):
        taken += window.take(100)
    assert len(taken) == window.num_unwritten == 8
    for row in taken[1:]:  # the first one is slow
        window.end(RowOutput(index=row.index))
    assert window.pop_finished() == []
    assert window.take(100) == []
    window.end(RowOutput(index=0))
    assert len(window.pop_finished()) == 8
    assert len(window.take(3)) == 3
    assert next(num_read) <= 8 + 4 + 2


def test_large_rows_are_bounded_by_their_bytes_and_never_locked_out():
    window = window_over(["x" * 10_000] * 6, rows=100, bytes=25_000)
    assert len(window.take(100)) == 3
    one = window_over(["x" * 10_000] * 2, rows=100, bytes=1)
    assert len(one.take(100)) == 1


def test_a_row_ends_once():
    window = window_over("ab", rows=6)
    window.take(2)
    window.end(RowOutput(index=0))
    for wrong in (0, 5):
        with pytest.raises(KeyError):
            window.end(RowOutput(index=wrong))
