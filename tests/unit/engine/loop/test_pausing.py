"""A whole engine paused, asleep and awake again, with requests in flight: nothing is lost and nothing is different."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayinfer.engine.plan.executor_commands import SleepLevel
from rayinfer.errors import EngineDead, InvalidParameter, WrongEngineState
from rayinfer.protocols import GetState, Pause, Resume, Sleep, Wake
from support.fakes.fake_executor import drive, expected_tokens, numbers

PERSIST, OFFLOAD, RECOMPUTE = SleepLevel


def busy(**size):
    """Engine in which some requests decode, one is within its prompt, one waits for a prefix and one for a row."""
    driven = drive(**{"max_num_seqs": 4, "budget": 12} | size)
    driven.add("decodes", numbers(5), max_tokens=20)
    driven.add("decodes too", numbers(6, 1), max_tokens=20)
    driven.step()
    driven.add("in its prompt", numbers(30, 2), max_tokens=3)
    driven.add("twin", numbers(30, 2), max_tokens=3)
    driven.add("late", numbers(7, 3), max_tokens=3)
    driven.add("waits", numbers(8, 4), max_tokens=3)
    driven.step()
    return driven


def check_busy(driven):
    wanted = {
        "decodes": expected_tokens(numbers(5), 20),
        "decodes too": expected_tokens(numbers(6, 1), 20),
        **dict.fromkeys(("in its prompt", "twin"), expected_tokens(numbers(30, 2), 3)),
        "late": expected_tokens(numbers(7, 3), 3),
        "waits": expected_tokens(numbers(8, 4), 3),
    }
    assert driven.tokens == wanted
    assert set(driven.reasons().values()) == {"length"}


# Pausing


def test_a_paused_engine_plans_nothing_and_goes_on_where_it_was():
    driven = busy()
    driven.engine.control(Pause())
    before, num_plans = driven.engine.stats, len(driven.executor.plans)
    assert [driven.step() for _ in range(3)] == [[], [], []]
    assert (len(driven.executor.plans), driven.engine.can_advance) == (num_plans, False)
    assert driven.engine.stats == before
    driven.engine.control(Resume())
    assert driven.engine.can_advance
    driven.run()
    check_busy(driven)


@pytest.mark.parametrize("level", [None, *SleepLevel])
def test_requests_come_and_go_while_nothing_is_computed(level):
    driven = drive()
    driven.add("aborted", numbers(5), max_tokens=50)
    driven.add("overdue", numbers(6), max_tokens=50, timeout_s=10.0)
    driven.add("stays", numbers(7), max_tokens=6)
    driven.step()
    driven.engine.control(Pause() if level is None else Sleep(level))
    driven.add("comes", numbers(8), max_tokens=2)
    driven.add("comes and is overdue", numbers(9), timeout_s=10.0)
    driven.add("comes and is aborted", numbers(10))
    driven.abort("aborted")
    driven.abort("comes and is aborted")
    driven.clock.now += 11
    driven.step()
    ended = {"aborted": "abort", "comes and is aborted": "abort"}
    ended |= {"overdue": "timeout", "comes and is overdue": "timeout"}
    assert driven.reasons() == ended
    driven.engine.control(Resume() if level is None else Wake())
    driven.run()
    assert driven.reasons() == ended | {"stays": "length", "comes": "length"}
    assert driven.tokens["stays"] == expected_tokens(numbers(7), 6)
    assert driven.tokens["comes"] == expected_tokens(numbers(8), 2)


def test_every_action_returns_the_state_that_the_stats_report():
    driven = drive()
    for action, state in {Pause(): "paused", Sleep(): "asleep", GetState(): "asleep", Wake(): "paused"}.items():
        assert driven.engine.control(action) == state == driven.engine.stats.state
    assert driven.engine.control(Resume()) == "running"


# Sleeping


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("level", list(SleepLevel))
def test_every_request_gets_the_same_tokens_after_a_sleep(level, caching):
    driven = busy(caching=caching)
    for _ in range(4):  # again and again, between any two steps
        driven.engine.control(Sleep(level))
        assert driven.step() == []
        driven.engine.control(Wake())
        driven.step()
    driven.run()
    check_busy(driven)
    assert driven.executor.moves == [("release", level), ("restore", level)] * 4


@pytest.mark.parametrize(("level", "num_more"), [(PERSIST, 0), (OFFLOAD, 0), (RECOMPUTE, 5 + 3 + 6 + 3)])
def test_only_the_deepest_sleep_has_running_requests_compute_again(level, num_more):
    driven = drive()
    driven.add("a", numbers(5), max_tokens=8)
    driven.add("b", numbers(6, 1), max_tokens=8)
    for _ in range(4):
        driven.step()
    driven.engine.control(Sleep(level))
    running = {PERSIST: 2, OFFLOAD: 2, RECOMPUTE: 0}[level]
    assert (driven.engine.stats.num_running, driven.engine.stats.num_waiting) == (running, 2 - running)
    driven.engine.control(Wake())
    driven.run()
    assert driven.executor.num_tokens_computed == 5 + 6 + 2 * 7 + num_more


@pytest.mark.parametrize(("level", "num_hits"), [(PERSIST, 16), (OFFLOAD, 0), (RECOMPUTE, 0)])
def test_unread_blocks_are_dropped_and_reported_with_their_memory(level, num_hits):
    driven = drive()
    driven.add("over", numbers(17), max_tokens=1)
    driven.run()
    stored = set(driven.engine.take_block_events()[0])
    driven.engine.control(Sleep(level))
    driven.engine.control(Wake())
    removed = set(driven.engine.take_block_events()[1])
    assert removed == (stored if num_hits == 0 else set())
    driven.add("again", numbers(17), max_tokens=1)
    driven.run()
    assert driven.ends["again"].num_cached_tokens == num_hits


def test_blocks_that_running_requests_read_can_be_hit_after_they_were_offloaded():
    driven = drive()
    driven.add("runs", numbers(17), max_tokens=30)
    driven.step()
    driven.engine.control(Sleep(OFFLOAD))
    driven.engine.control(Wake())
    driven.add("shares", numbers(17), max_tokens=1)
    driven.run()
    assert driven.ends["shares"].num_cached_tokens == 16


def test_falling_asleep_twice_at_one_level_is_like_once_and_another_level_is_refused():
    driven = busy()
    for _ in range(2):
        driven.engine.control(Sleep(1))
    with pytest.raises(WrongEngineState, match="asleep at level 1: it cannot sleep at level 2"):
        driven.engine.control(Sleep(2))
    for _ in range(2):
        driven.engine.control(Wake())
    assert driven.executor.moves == [("release", OFFLOAD), ("restore", OFFLOAD)]
    driven.run()
    check_busy(driven)


def test_an_unknown_level_is_refused_and_the_engine_runs_on():
    driven = busy()
    with pytest.raises(InvalidParameter, match="level must be 0, 1 or 2, got 3"):
        driven.engine.control(Sleep(3))
    driven.run()
    check_busy(driven)


# What goes wrong


def test_an_engine_that_cannot_wake_is_dead_and_says_why_whatever_it_is_asked():
    driven = busy()
    driven.engine.control(Sleep(2))
    driven.executor.wake_failure = FileNotFoundError("model.safetensors")
    with pytest.raises(EngineDead, match=r"could not wake from level 2: FileNotFoundError: model.safetensors"):
        driven.engine.control(Wake())
    assert driven.engine.stats.state == "dead"
    control = driven.engine.control
    asked = (driven.engine.step, lambda: control(Wake()), lambda: control(Pause()), lambda: driven.add("new", [1, 2]))
    for ask in asked:
        with pytest.raises(EngineDead, match=r"model\.safetensors"):
            ask()
    driven.abort("waits")
    driven.engine.exit()
    assert driven.executor.is_shut_down


def test_an_engine_that_cannot_fall_asleep_is_dead_too():
    driven = busy()
    driven.executor.sleep_failure = MemoryError("no room for the copy")
    with pytest.raises(EngineDead, match="could not fall asleep at level 1: MemoryError: no room"):
        driven.engine.control(Sleep(1))
    with pytest.raises(EngineDead):
        driven.step()


def test_a_step_that_was_interrupted_is_done_again_after_a_sleep():
    for level in SleepLevel:
        interruptions = iter([None, KeyboardInterrupt()])
        driven = drive(failure=lambda context, left=interruptions: next(left, None))
        driven.add("a", numbers(6), max_tokens=5, repetition_penalty=1.2)
        driven.add("b", numbers(7, 1), max_tokens=5)
        with pytest.raises(KeyboardInterrupt):
            driven.step()
        driven.engine.control(Sleep(level))
        driven.engine.control(Wake())
        driven.run()
        assert driven.tokens == {"a": expected_tokens(numbers(6), 5), "b": expected_tokens(numbers(7, 1), 5)}


# Whatever happens

ACTIONS = [Pause(), Resume(), Wake(), *map(Sleep, SleepLevel)]


@st.composite
def scripts(draw):
    size = {
        "block_size": draw(st.sampled_from([1, 2, 4])),
        "num_blocks": draw(st.integers(6, 16)),
        "num_offload_blocks": draw(st.sampled_from([0, 3, 32])),
        "max_num_seqs": draw(st.integers(1, 5)),
        "budget": draw(st.sampled_from([1, 3, 16])),
        "caching": draw(st.booleans()),
    }
    longest = size["block_size"] * size["num_blocks"] - 2
    submission = st.tuples(
        st.just("submit"), st.integers(1, longest), st.integers(0, 2), st.integers(1, 9), st.sampled_from([0, 0, 1, -1])
    )
    move = st.one_of(
        submission,
        st.tuples(st.just("step"), st.integers(1, 5)),
        st.tuples(st.just("abort"), st.integers(0, 10)),
        st.tuples(st.just("control"), st.sampled_from(ACTIONS)),
    )
    return size, draw(st.lists(move, max_size=30))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts())
def test_every_order_gives_right_tokens_and_empty_pools(script):
    size, moves = script
    driven, submitted = drive(**size), {}
    limit = driven.engine.description.max_model_len
    for kind, *details in moves:
        if kind == "submit":
            length, start, max_tokens, priority = details
            name = f"r{len(submitted)}"
            prompt = numbers(length, start)
            driven.add(name, prompt, max_tokens=max_tokens, priority=priority)
            submitted[name] = expected_tokens(prompt, min(max_tokens, limit - length))
        elif kind == "step":
            num_plans, can_advance = len(driven.executor.plans), driven.engine.can_advance
            for _ in range(details[0]):
                driven.step()
            assert can_advance or len(driven.executor.plans) == num_plans
        elif kind == "abort":
            driven.abort(f"r{details[0]}")
        else:
            try:
                driven.engine.control(details[0])
            except WrongEngineState:
                assert driven.engine.stats.state == "asleep"
    driven.engine.control(Wake())
    driven.engine.control(Resume())
    driven.run(max_steps=3000)
    assert driven.ends.keys() == submitted.keys()
    for name, wanted in submitted.items():
        is_aborted = driven.ends[name].finish_reason == "abort"
        assert driven.tokens[name] == (wanted[: len(driven.tokens[name])] if is_aborted else wanted)
