import numpy as np
import pytest
import torch

from rayinfer.decoding.ragged_rows import RaggedRows


@pytest.fixture
def lists():
    kept = RaggedRows(6, torch.device("cpu"))
    kept.put(1, np.array([10, 11]), np.array([0.5, 0.25], np.float32))
    kept.put(4, np.array([40]), np.array([4.0], np.float32))
    return kept


def entries(gathered):
    columns = (column.tolist() for column in gathered.columns)
    return list(zip(gathered.lines.tolist(), *columns, strict=True))


def test_the_lists_of_a_batch_come_with_the_line_that_each_entry_belongs_to(lists):
    gathered = lists.gather(np.array([4, 0, 1, 5]))
    assert gathered.listed.tolist() == [0, 2]
    assert entries(gathered) == [(0, 40, 4.0), (2, 10, 0.5), (2, 11, 0.25)]


def test_a_batch_without_lists_gathers_nothing(lists):
    assert lists.gather(np.array([0, 5])) is None
    assert lists.gather(np.array([], np.int64)) is None


def test_a_dropped_list_is_gone_and_dropping_none_is_fine(lists):
    lists.drop(1)
    lists.drop(3)
    assert entries(lists.gather(np.array([1, 4]))) == [(1, 40, 4.0)]


def test_changes_between_two_equal_batches_are_seen(lists):
    rows = np.array([1, 4, 2])
    assert [line for line, *_ in entries(lists.gather(rows))] == [0, 0, 1]
    lists.put(2, np.array([20]), np.array([2.0], np.float32))
    assert [line for line, *_ in entries(lists.gather(rows))] == [0, 0, 1, 2]
    lists.drop(1)
    assert [line for line, *_ in entries(lists.gather(rows))] == [1, 2]
    rows[2] = 5  # a caller may use its array again
    assert [line for line, *_ in entries(lists.gather(rows))] == [1]


def test_a_new_list_takes_the_place_of_the_old_one(lists):
    lists.put(4, np.array([7, 8, 9]), np.zeros(3, np.float32))
    assert [token_id for _, token_id, _ in entries(lists.gather(np.array([4])))] == [7, 8, 9]


def test_entries_may_be_rows_themselves():
    lists = RaggedRows(2, torch.device("cpu"))
    lists.put(0, np.array([1]), np.array([[1, 2]]))
    lists.put(1, np.array([2, 3]), np.array([[3, 4], [5, 6]]))
    assert entries(lists.gather(np.array([1, 0]))) == [(0, 2, [3, 4]), (0, 3, [5, 6]), (1, 1, [1, 2])]
