"""Rows that wait for workers: order, batches, and rows under which workers die."""

import random

import pytest

from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.providers import SeededRow
from rayinfer.jobs.workers.row_queue import MAX_DEATHS, RowQueue

CAPACITY = 8


class Workers:
    """Workers whose rows end one after the other; a dead one is replaced at once."""

    def __init__(self, num_rows: int, *, num_workers: int = 2, batch_rows: int = 1) -> None:
        self.queue = RowQueue()
        self.queue.extend([SeededRow(Row(index, f"id-{index}", {}, index), index) for index in range(num_rows)])
        self.batch_rows = batch_rows
        self.rows: list[dict[int, SeededRow]] = [{} for _ in range(num_workers)]
        self.finished: list[int] = []
        self.num_deaths = 0

    @property
    def is_done(self) -> bool:
        return not self.queue and not any(self.rows)

    def fill(self, number: int) -> None:
        """Give one worker its rows."""
        in_worker = self.rows[number]
        taken = self.queue.take(
            in_worker,
            room=CAPACITY - len(in_worker),
            batch_rows=self.batch_rows,
            is_idle=not any(self.rows),
        )
        in_worker.update((each.row.index, each) for each in taken)

    def finish(self, number: int, index: int) -> None:
        """End a row of a worker."""
        del self.rows[number][index]
        self.queue.finish(index)
        self.finished.append(index)

    def kill(self, number: int) -> list[int]:
        """End a worker; returns the rows that are given up."""
        rows, self.rows[number] = self.rows[number], {}
        self.num_deaths += 1
        return [each.row.index for each in self.queue.return_rows(rows)]


@pytest.mark.parametrize("batch_rows", [1, 4])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_a_row_that_ends_workers_is_named_alone_and_soon(num_workers, batch_rows):
    workers, fatal = Workers(60, num_workers=num_workers, batch_rows=batch_rows), []
    rng = random.Random(num_workers)
    while not fatal:
        number = rng.randrange(num_workers)
        workers.fill(number)
        if 17 in workers.rows[number]:
            fatal = workers.kill(number)
        elif workers.rows[number]:
            workers.finish(number, min(workers.rows[number]))
    assert fatal == ([17] if batch_rows == 1 else [16, 17, 18, 19])
    assert workers.num_deaths == MAX_DEATHS


def test_rows_beside_the_one_that_ends_workers_are_computed():
    workers, fatal = Workers(20, num_workers=1), []
    while not fatal:
        workers.fill(0)
        if 3 in workers.rows[0]:
            fatal = workers.kill(0)
        else:
            workers.finish(0, min(workers.rows[0]))
    assert fatal == [3]
    assert {0, 1, 2} <= set(workers.finished)


def test_workers_killed_at_random_finish_every_row_once():
    """Twenty kills among 400 rows, two workers, some of them one just after the other, as in a test of real workers."""
    for seed in range(300):
        rng = random.Random(seed)
        workers = Workers(400)
        kills = sorted(rng.sample(range(20, 380), 20))
        while not workers.is_done:
            number = rng.randrange(2)
            workers.fill(number)
            if kills and len(workers.finished) >= kills[0]:
                kills.pop(0)
                assert workers.kill(number) == [], seed
            elif workers.rows[number]:
                workers.finish(number, rng.choice(list(workers.rows[number])))
        assert sorted(workers.finished) == list(range(400))
        assert workers.num_deaths == 20


def test_a_suspected_row_waits_for_an_empty_worker_and_others_wait_for_its_end():
    workers = Workers(12)
    for _ in range(2):
        workers.fill(0)
        assert workers.kill(0) == []
    workers.fill(0)
    assert set(workers.rows[0]) == {0}, "it was given away among others"
    workers.fill(0)
    assert set(workers.rows[0]) == {0}, "others joined it"
    workers.fill(1)
    assert set(workers.rows[1]) == {1}
    workers.finish(0, 0)
    for index in range(2, CAPACITY):
        workers.fill(0)
        assert set(workers.rows[0]) == {index}
        workers.finish(0, index)
    workers.fill(0)
    assert set(workers.rows[0]) == {8, 9, 10, 11}, "rows that no worker died with are computed together"


def test_a_batch_that_is_not_whole_waits_while_others_compute():
    workers = Workers(6, batch_rows=4)
    workers.fill(0)
    assert set(workers.rows[0]) == {0, 1, 2, 3, 4, 5}
    other = Workers(2, batch_rows=4)
    other.rows[1] = {9: SeededRow(Row(9, "9", {}, 9), 9)}
    other.fill(0)
    assert other.rows[0] == {}
    other.finish(1, 9)
    other.fill(0)
    assert set(other.rows[0]) == {0, 1}


def test_a_suspected_row_is_not_taken_after_others():
    workers = Workers(3)
    late = workers.queue.take({}, room=1, batch_rows=1, is_idle=True)
    for _ in range(2):
        workers.fill(0)
        assert workers.kill(0) == []
    workers.queue.return_rows({late[0].row.index: late[0]})
    workers.fill(0)
    assert set(workers.rows[0]) == {0}
    workers.fill(1)
    assert set(workers.rows[1]) == {1}
