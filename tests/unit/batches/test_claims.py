import random
from collections.abc import Callable

import pytest

from rayinfer.batches.claims import ROUTER_SILENT_S, Claims
from rayinfer.batches.records import RowKey


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rows_of_a_silent_router_go_to_another(clock: Clock):
    claims = Claims(clock)
    claims.add("b", "owner", range(3))
    claims.take_running("first", [], [])
    given = claims.give("first", 3)
    clock.now_s = ROUTER_SILENT_S / 2
    claims.take_running("second", [], [])
    assert claims.give("second", 3) == []
    clock.now_s = ROUTER_SILENT_S + 1
    claims.take_running("second", [], [])
    assert sorted(claims.give("second", 3)) == given


def test_a_router_that_comes_back_does_not_take_a_row_from_another(clock: Clock):
    claims = Claims(clock)
    claims.add("b", "owner", range(1))
    claims.take_running("first", [], [])
    given = claims.give("first", 1)
    clock.now_s = ROUTER_SILENT_S + 1
    claims.take_running("second", [], [])
    assert claims.give("second", 1) == given
    claims.take_running("first", given, [])
    assert not claims.is_idle("b")
    claims.take_running("first", [], given)
    claims.take_running("second", [], given)
    assert claims.is_idle("b")


def test_owners_take_turns(clock: Clock):
    claims = Claims(clock)
    claims.add("large", "one", range(100))
    claims.add("later", "one", range(100))
    claims.add("small", "two", range(100))
    claims.take_running("router", [], [])
    given = [key.batch_id for key in claims.give("router", 20)]
    assert (given.count("large"), given.count("later"), given.count("small")) == (10, 0, 10)


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_done_whatever_dies(seed: int, clock: Clock):
    chance = random.Random(seed)
    done: dict[RowKey, int] = {}
    wanted = {RowKey(f"b{index}", line) for index in range(3) for line in range(chance.randint(1, 20))}
    stored: set[RowKey] = set()
    routers: dict[str, set[RowKey]] = {"r0": set(), "r1": set()}

    def fresh() -> Claims:
        claims = Claims(clock)
        for batch_id in sorted({key.batch_id for key in wanted}):
            lines = [key.line for key in sorted(wanted) if key.batch_id == batch_id and key not in stored]
            claims.add(batch_id, batch_id[-1], lines)
        return claims

    claims = fresh()
    num_restarts = 0
    for step in range(4000):
        clock.now_s += chance.random()
        name = chance.choice(list(routers))
        running = routers[name]
        results = {key for key in running if chance.random() < 0.3}
        running -= results
        stored |= results
        for key in results:
            done[key] = done.get(key, 0) + 1
        claims.take_running(name, running, results)
        given = claims.give(name, chance.randint(0, 4))
        assert not set(given) & stored
        if chance.random() < 0.9:  # else the answer is lost
            running.update(given)
        if step < 300 and chance.random() < 0.02:
            del routers[name]
            routers[f"r{step + 2}"] = set()
        if step < 300 and chance.random() < 0.02:
            claims, num_restarts = fresh(), num_restarts + 1
        if stored == wanted and all(_is_idle(claims, key.batch_id) for key in wanted):
            break
    assert stored == wanted
    assert all(_is_idle(claims, key.batch_id) for key in wanted)
    assert num_restarts or max(done.values()) <= 2


_is_idle: Callable[[Claims, str], bool] = Claims.is_idle
