"""State transitions of an engine, and failures while memory is freed or allocated again."""

import pytest

from rayinfer.engine.loop.engine_state import LifeCycle
from rayinfer.engine.plan.executor_commands import SleepLevel, sleep_level
from rayinfer.errors import EngineDead, InvalidParameter, WrongEngineState
from rayinfer.outputs import EngineState

OFFLOAD, RECOMPUTE = SleepLevel.OFFLOAD, SleepLevel.RECOMPUTE


def nothing(level):
    """Give back, or bring back, nothing."""


def asleep(level=OFFLOAD):
    life = LifeCycle()
    life.sleep(level, nothing)
    return life


def test_pausing_and_resuming_twice_is_like_once():
    life = LifeCycle()
    assert life.is_running
    for _ in range(2):
        life.pause()
        assert (life.state, life.is_running) == (EngineState.PAUSED, False)
    for _ in range(2):
        life.resume()
        assert (life.state, life.is_running) == (EngineState.RUNNING, True)


@pytest.mark.parametrize("before", [EngineState.RUNNING, EngineState.PAUSED])
def test_an_engine_wakes_as_what_it_was(before):
    life, told = LifeCycle(), []
    if before is EngineState.PAUSED:
        life.pause()
    for _ in range(2):
        life.sleep(RECOMPUTE, lambda level: told.append(("gives back", level)))
        assert life.state is EngineState.ASLEEP
    for _ in range(2):
        life.wake(lambda level: told.append(("restores", level)))
        assert life.state is before
    assert told == [("gives back", RECOMPUTE), ("restores", RECOMPUTE)]


@pytest.mark.parametrize("move", ["pause", "resume"])
def test_a_sleeping_engine_is_neither_paused_nor_resumed(move):
    with pytest.raises(WrongEngineState, match=f"asleep at level 1: it cannot be {move}d"):
        getattr(asleep(), move)()


def test_a_sleeping_engine_does_not_change_its_level():
    life = asleep(OFFLOAD)
    with pytest.raises(WrongEngineState, match="asleep at level 1: it cannot sleep at level 2"):
        life.sleep(RECOMPUTE, nothing)
    assert life.state is EngineState.ASLEEP


def test_only_a_running_engine_passes_for_one():
    life = LifeCycle()
    life.check_running("generate")
    life.pause()
    with pytest.raises(WrongEngineState, match="paused: it cannot generate"):
        life.check_running("generate")


def test_an_engine_whose_memory_does_not_come_back_is_dead_and_says_why():
    life = asleep(RECOMPUTE)

    def fail(level):
        raise FileNotFoundError("model.safetensors")

    with pytest.raises(EngineDead, match=r"could not wake from level 2: FileNotFoundError: model.safetensors"):
        life.wake(fail)
    assert life.state is EngineState.DEAD
    moves = (
        life.pause,
        life.resume,
        lambda: life.sleep(OFFLOAD, nothing),
        lambda: life.wake(nothing),
        life.check_alive,
    )
    for move in moves:
        with pytest.raises(EngineDead, match="could not wake from level 2"):
            move()


def test_an_engine_that_is_interrupted_halfway_into_sleep_is_dead_too():
    life = LifeCycle()

    def interrupted(level):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        life.sleep(OFFLOAD, interrupted)
    with pytest.raises(EngineDead, match="fall asleep at level 1: KeyboardInterrupt"):
        life.check_alive()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_level_is_one_of_three(level):
    assert sleep_level(level) == level


@pytest.mark.parametrize("level", [-1, 3, "1", None, True, 1.0])
def test_another_level_is_refused_with_its_range(level):
    with pytest.raises(InvalidParameter, match="level must be 0, 1 or 2") as caught:
        sleep_level(level)
    assert caught.value.param == "level"
