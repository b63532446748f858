"""torch's store between ranks: over their own connections, with waits that end when a rank is lost."""

import threading

import pytest

from rayinfer.engine.ranks.control_connection import ConnectionLost
from rayinfer.engine.ranks.rank_messages import Heartbeat
from rayinfer.engine.ranks.rank_store import RankStore, StoreValues, call_over
from support.fakes.control_connections import connection_pair

SOON_S = 10.0


@pytest.fixture
def stores():
    """Rank 0's, and that of another rank."""
    here, there = connection_pair()
    values = StoreValues()
    values.serve([here])
    yield RankStore(values.run, SOON_S), RankStore(call_over(there), SOON_S), there, values
    there.close()


def test_a_value_set_by_one_rank_is_read_by_another(stores):
    first, second, *_ = stores
    second.set("a", b"\x00\xff")
    assert first.get("a") == b"\x00\xff"
    first.set("b", "text")
    assert second.get("b") == b"text"
    assert second.check(["a", "b"])
    assert not second.check(["a", "c"])
    assert [first.add("count", 2), second.add("count", 3)] == [2, 5]
    assert second.delete_key("a")
    assert not first.delete_key("a")
    assert second.clone() is second


def test_get_waits_until_another_rank_has_set_the_key(stores):
    first, second, *_ = stores
    threading.Timer(0.2, first.set, ("late", b"1")).start()
    second.wait(["late"])
    assert second.get("late") == b"1"


def test_get_raises_after_the_timeout():
    with pytest.raises(TimeoutError, match=r"no rank has set never within 0\.1 s"):
        RankStore(StoreValues().run, 0.1).get("never")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wait_ends_with_the_group(rank, stores):
    *both, connection, values = stores
    threading.Timer(0.2, values.close if rank == 0 else connection.shutdown).start()
    with pytest.raises(ConnectionLost):
        both[rank].get("never")


def test_a_rank_that_sends_anything_else_is_disconnected(stores):
    *_, connection, _ = stores
    connection.send(Heartbeat(), SOON_S)
    with pytest.raises(ConnectionLost):
        connection.receive(SOON_S)
