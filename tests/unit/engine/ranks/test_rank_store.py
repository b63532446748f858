"""torch's store between ranks: it goes over their own lines, and frees whoever waits in it when one of them is lost."""

import threading

import pytest

from rayinfer.engine.ranks.control_connection import LineLost
from rayinfer.engine.ranks.plan_codec import Beat
from rayinfer.engine.ranks.rank_store import RankStore, StoreValues, ask_over
from support.fakes.control_connections import pair_of_lines

SOON_S = 10.0


@pytest.fixture
def stores():
    """Rank 0's, and that of another rank."""
    here, there = pair_of_lines()
    values = StoreValues()
    values.serve([here])
    yield RankStore(values.answer, SOON_S), RankStore(ask_over(there), SOON_S), there, values
    there.close()


def test_what_one_rank_sets_the_other_gets(stores):
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


def test_a_rank_waits_until_another_one_has_set_the_key(stores):
    first, second, *_ = stores
    threading.Timer(0.2, first.set, ("late", b"1")).start()
    second.wait(["late"])
    assert second.get("late") == b"1"


def test_a_key_that_never_comes_is_waited_for_until_the_timeout():
    with pytest.raises(TimeoutError, match=r"no rank has set never within 0\.1 s"):
        RankStore(StoreValues().answer, 0.1).get("never")


@pytest.mark.parametrize("rank", [0, 1])
def test_who_waits_is_freed_when_the_group_ends(rank, stores):
    *both, line, values = stores
    threading.Timer(0.2, values.close if rank == 0 else line.hang_up).start()
    with pytest.raises(LineLost):
        both[rank].get("never")


def test_a_rank_that_says_something_else_is_hung_up_on(stores):
    *_, line, _ = stores
    line.send(Beat(), SOON_S)
    with pytest.raises(LineLost):
        line.receive(SOON_S)
