import asyncio

import pytest

from rayinfer.routing.first_tokens import NOTHING, FirstTokenCounts
from rayinfer_deployments.discovery.scale_from_zero import FORGET_S, READ_INTERVAL_S, Backlogs, write_backlog
from support.services.polling import until

WAITING = FirstTokenCounts(num_waiting=3, waiting_tokens=400, num_started=2, num_late=1)


class MemoryTable:
    """Ray's table in one process; can be made to fail."""

    def __init__(self):
        self.values, self.num_reads, self.fails = {}, 0, False

    def put(self, key, value):
        if self.fails:
            raise ConnectionError("the table does not answer")
        self.values[key] = value

    def delete(self, key):
        self.values.pop(key, None)

    def read(self, prefix):
        if self.fails:
            raise ConnectionError("the table does not answer")
        self.num_reads += 1
        return {key: value for key, value in self.values.items() if key.startswith(prefix)}


class Router:
    def __init__(self, table, name):
        self.needs_engine, self.counts = False, WAITING
        self.writing = asyncio.create_task(
            write_backlog(table, "app", "engine-0", name, lambda: self.needs_engine, lambda: self.counts)
        )

    async def end(self):
        self.writing.cancel()
        await asyncio.wait({self.writing})


@pytest.fixture
def table():
    return MemoryTable()


@pytest.fixture
async def router(table):
    router = Router(table, "r1")
    yield router
    await router.end()


def total(table, now_s=0.0):
    return Backlogs(table).total("app", "engine-0", now_s)


async def test_what_waits_is_written_for_as_long_as_an_engine_is_needed(table, router):
    await asyncio.sleep(0.3)
    assert table.values == {}
    router.needs_engine = True
    await until(lambda: total(table) == WAITING)
    router.counts = WAITING._replace(waiting_tokens=900)
    await until(lambda: total(table) == router.counts)
    router.needs_engine = False
    await until(lambda: table.values == {})


async def test_what_waits_for_long_is_written_again_and_again_as_another_value(table, router):
    router.needs_engine = True
    await until(lambda: table.values)
    (first,) = table.values.values()
    await until(lambda: first not in table.values.values())
    assert total(table) == WAITING


async def test_a_router_that_needs_an_engine_to_know_the_model_counts_as_one_that_waits(table, router):
    router.counts, router.needs_engine = NOTHING, True
    await until(lambda: total(table).num_waiting == 1)


async def test_routers_add_up_and_another_deployments_do_not(table, router):
    other = Router(table, "r2")
    table.put("app/engine-01/r1", b"[1, 9, 9, 0, 0]")
    router.needs_engine = other.needs_engine = True
    await until(lambda: total(table) == WAITING.plus(WAITING))
    await other.end()  # and takes what it wrote with it
    assert total(table) == WAITING


async def test_a_name_with_a_slash_is_no_other_applications(table, router):
    writing = write_backlog(table, "app/engine-0", "engine-0", "r2", lambda: True, lambda: WAITING)
    async with asyncio.TaskGroup() as tasks:
        other = tasks.create_task(writing)
        await until(lambda: len(table.values) == 1)
        assert total(table) == NOTHING
        assert Backlogs(table).total("app/engine-0", "engine-0", 0.0) == WAITING
        other.cancel()


async def test_a_table_that_fails_for_a_while_is_asked_again(table, router):
    table.fails = router.needs_engine = True
    await asyncio.sleep(0.3)
    table.fails = False
    await until(lambda: total(table) == WAITING)


def test_a_router_that_was_killed_is_forgotten_by_the_readers_clock(table):
    table.put("app/engine-0/r1", b"[1, 3, 400, 0, 0]")
    backlogs = Backlogs(table)
    for now_s in (1000.0, 1000.0 + FORGET_S):
        assert backlogs.total("app", "engine-0", now_s).num_waiting == 3
    assert backlogs.total("app", "engine-0", 1001.0 + FORGET_S) == NOTHING
    assert table.values == {}
    table.put("app/engine-0/r1", b"[2, 1, 10, 0, 0]")
    assert backlogs.total("app", "engine-0", 1002.0 + FORGET_S).num_waiting == 1


def test_a_router_that_writes_on_counts_however_long_it_waits(table):
    backlogs = Backlogs(table)
    for number in range(1, 8):
        table.put("app/engine-0/r1", b"[%d, 3, 400, 0, 0]" % number)
        assert backlogs.total("app", "engine-0", number * FORGET_S / 2).num_waiting == 3


def test_a_table_that_cannot_be_read_says_that_nothing_waits(table):
    table.put("app/engine-0/r1", b"[1, 3, 400, 0, 0]")
    table.fails = True
    assert Backlogs(table).total("app", "engine-0", 0.0) == NOTHING


def test_the_table_is_not_read_at_every_decision(table):
    backlogs = Backlogs(table)
    for hundredth in range(100):
        backlogs.total("app", "engine-0", hundredth / 100)
    assert table.num_reads <= 1 + 1 / READ_INTERVAL_S
