"""Requests that name a source of KV blocks wait for them, for a bounded time, and run whatever came of it."""

import asyncio
import contextlib
import time

import pytest

from rayinfer.kv_transfer.engine_transfers import EngineTransfers
from rayinfer.kv_transfer.fetching_engine import block_names
from rayinfer.kv_transfer.limits import TransferLimits
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.outputs import StepMessage
from rayinfer.protocols import KVSource
from support.fakes.block_peers import IDENTITY, Relay
from support.fakes.fake_blocks import open_slots
from support.fakes.fake_engine_client import FakeEngineClient
from support.services.async_engines import request
from support.services.polling import until

HOST = "127.0.0.1"
BLOCK_SIZE = 16
PROMPT = [5 + 7 * i % 90 for i in range(10 * BLOCK_SIZE + 3)]


class Machine:
    """A store, and an engine in front of which transfers are."""

    def __init__(self, path, **limits):
        self.slots = open_slots(path, 32)
        self.client = FakeEngineClient()
        self.transfers = EngineTransfers(
            self.client,
            self.client.description,
            StoredBlocks(IDENTITY, self.slots),
            HOST,
            limits=TransferLimits(**limits),
        )
        self.engine = self.transfers.engine

    def names(self, asked=None, num_blocks=10):
        return block_names(asked or self.request(), num_blocks, BLOCK_SIZE)

    def fill(self, count=10, **fields):
        parent, stamp = None, time.time_ns()
        for number, name in enumerate(self.names(request("x", PROMPT, **fields))[:count]):
            block = memoryview(bytearray([number] * self.slots.layout.block_bytes))
            assert self.slots.write(name.key, name.content, [block], parent, stamp - number)
            parent = name.key

    def request(self, request_id="a/0", source=None, **fields):
        return request(request_id, PROMPT, kv_source=source, **fields)

    def num_blocks(self):
        blocks = [memoryview(bytearray(self.slots.layout.block_bytes)) for _ in range(10)]
        there = [
            self.slots.read(name.key, name.content, [block], time.time_ns())
            for name, block in zip(self.names(), blocks, strict=True)
        ]
        assert all(set(block) == {number} for number, block in enumerate(blocks) if there[number])
        return sum(there)


@pytest.fixture
def first(tmp_path):
    with closing(Machine(tmp_path / "first.kv")) as machine:
        machine.fill()
        yield machine


@pytest.fixture
def second(tmp_path):
    with closing(Machine(tmp_path / "second.kv", max_wait_s=2.0)) as machine:
        yield machine


@contextlib.contextmanager
def closing(machine):
    yield machine
    machine.transfers.close()


async def test_a_request_runs_once_its_blocks_are_fetched(first, second):
    source = first.transfers.address.source(num_blocks=10, timeout_s=5.0)
    await second.engine.submit([second.request(source=source, timeout_s=60.0)], "r")
    assert second.client.submitted == []  # the caller does not wait for the fetch
    await until(lambda: second.client.submitted)
    assert second.num_blocks() == 10
    (submitted,) = second.client.submitted
    assert (submitted.kv_source, submitted.request_id) == (None, "a/0")
    assert 50 < submitted.timeout_s < 60
    stats = second.engine.stats
    assert (stats.fetches_total, stats.failed_fetches_total, stats.fetched_blocks_total) == (1, 0, 10)
    assert first.engine.stats.sent_blocks_total == 10


async def test_requests_without_a_source_overtake(first, second):
    relay = Relay(first.transfers.address.port, stop_after=0)
    source = first.transfers.address.source(num_blocks=10, timeout_s=1.0)
    hanging = KVSource(**{name: getattr(source, name) for name in source.__slots__} | {"port": relay.port})
    begun = time.monotonic()
    await second.engine.submit([second.request(source=hanging), second.request("b/0")], "r")
    assert second.client.submitted_ids == ["b/0"]
    await until(lambda: second.client.submitted_ids == ["b/0", "a/0"])
    assert 0.9 < time.monotonic() - begun < 30
    assert second.engine.stats.failed_fetches_total == 1
    relay.close()


@pytest.mark.parametrize("changes", [{"port": 1}, {"key": b"guessed"}, {"host": "name.invalid"}])
async def test_a_request_runs_without_blocks_where_its_source_fails(first, second, changes):
    source = first.transfers.address.source(num_blocks=10, timeout_s=5.0)
    source = KVSource(**{name: getattr(source, name) for name in source.__slots__} | changes)
    await second.engine.submit([second.request(source=source)], "r")
    await until(lambda: second.client.submitted)
    assert (second.num_blocks(), second.engine.stats.failed_fetches_total) == (0, 1)


async def test_the_machines_own_store_is_waited_for(second):
    source = KVSource(num_blocks=10, timeout_s=5.0, wait_s=5.0)
    await second.engine.submit([second.request(source=source)], "r")
    await asyncio.sleep(0.1)
    assert second.client.submitted == []
    second.fill()
    await until(lambda: second.client.submitted)
    assert second.engine.stats.failed_fetches_total == 0


async def test_blocks_of_another_tenant_are_never_fetched(first, second):
    source = first.transfers.address.source(num_blocks=10, timeout_s=5.0)
    await second.engine.submit([second.request(source=source, tenant="other")], "r")
    await until(lambda: second.client.submitted)
    assert (second.num_blocks(), first.engine.stats.sent_blocks_total) == (0, 0)


async def test_an_aborted_request_is_not_submitted(second):
    source = KVSource(num_blocks=10, timeout_s=0.2, wait_s=5.0)
    await second.engine.submit([second.request(source=source), second.request("b/0", source)], "r")
    await second.engine.abort(["a/0"])
    assert second.client.aborted == ["a/0"]
    await until(lambda: second.client.submitted_ids == ["b/0"])
    assert second.engine.num_held == 0


async def test_requests_of_a_router_that_left_are_not_submitted(second):
    messages = second.engine.outputs("r")
    second.client.say()
    message = await anext(messages)
    assert isinstance(message, StepMessage)
    assert message.stats.kv_transfer is second.engine.stats
    await second.engine.submit([second.request(source=KVSource(num_blocks=10, timeout_s=0.1, wait_s=5.0))], "r")
    await messages.aclose()
    assert second.engine.num_held == 0
    await until(lambda: second.engine.stats.fetches_total)
    assert second.client.submitted == []


async def test_the_engine_bounds_the_wait_whatever_the_router_says(first, second):
    relay = Relay(first.transfers.address.port, stop_after=0)
    source = first.transfers.address.source(num_blocks=10, timeout_s=900.0, wait_s=900.0)
    hanging = KVSource(**{name: getattr(source, name) for name in source.__slots__} | {"port": relay.port})
    begun = time.monotonic()
    await second.engine.submit([second.request(source=hanging)], "r")
    await until(lambda: second.client.submitted)
    assert time.monotonic() - begun < 60  # max_wait_s is 2
    relay.close()


async def test_blocks_that_stop_coming_are_not_waited_for(tmp_path):
    with closing(Machine(tmp_path / "third.kv", max_wait_s=60.0, stall_s=1.5)) as machine:
        begun = time.monotonic()
        source = KVSource(num_blocks=10, timeout_s=60.0, wait_s=60.0)
        await machine.engine.submit([machine.request(source=source)], "r")
        await asyncio.sleep(0.8)
        machine.fill(5)
        await asyncio.sleep(0.8)
        assert machine.client.submitted == []  # further ones may come
        await until(lambda: machine.client.submitted)
        assert time.monotonic() - begun < 30
        assert machine.engine.stats.failed_fetches_total == 1


async def test_blocks_of_another_machine_that_stop_coming_are_not_waited_for(tmp_path):
    with (
        closing(Machine(tmp_path / "third.kv", stall_s=0.3)) as machine,
        closing(Machine(tmp_path / "second.kv", max_wait_s=60.0)) as second,
    ):
        machine.fill(5)
        begun = time.monotonic()
        source = machine.transfers.address.source(num_blocks=10, timeout_s=60.0, wait_s=60.0)
        await second.engine.submit([second.request(source=source)], "r")
        await until(lambda: second.client.submitted)
        assert 0.2 < time.monotonic() - begun < 30  # max_wait_s of the second is 60
        assert second.num_blocks() == 5
