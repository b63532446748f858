"""The life cycle of an engine: run, pause, sleep, wake, die once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rayinfer.engine.plan.executor_commands import SleepLevel
from rayinfer.errors import EngineDead, WrongEngineState
from rayinfer.outputs import EngineState


class LifeCycle:
    """The transitions between states; a transition to the present state changes nothing.

    A sleeping engine wakes as what it was when it fell asleep, so it is neither paused nor resumed meanwhile.
    """

    def __init__(self) -> None:
        self.state = EngineState.RUNNING
        self._level = SleepLevel.PERSIST  # while it sleeps
        self._state_before_sleep = EngineState.RUNNING
        self._death: EngineDead | None = None

    @property
    def is_running(self) -> bool:
        """Whether steps are planned."""
        return self.state is EngineState.RUNNING

    def die(self, death: EngineDead) -> None:
        """Anything -> dead, for this cause."""
        if self._death is None:
            self.state, self._death = EngineState.DEAD, death

    def check_alive(self) -> None:
        """Raise EngineDead, with its cause, once the engine is dead."""
        if self._death is not None:
            raise EngineDead(str(self._death))

    def check_running(self, wanted: str) -> None:
        """Raise WrongEngineState unless steps are planned."""
        self.check_alive()
        if not self.is_running:
            raise self._wrong_state(wanted)

    def pause(self) -> None:
        """Running, paused -> paused."""
        self._check_awake("be paused")
        self.state = EngineState.PAUSED

    def resume(self) -> None:
        """Paused, running -> running."""
        self._check_awake("be resumed")
        self.state = EngineState.RUNNING

    def sleep(self, level: SleepLevel, give_back: Callable[[SleepLevel], None]) -> None:
        """Running, paused -> asleep, once `give_back` has made room; if that fails, the engine is dead."""
        self.check_alive()
        if self.state is EngineState.ASLEEP:
            if level is self._level:
                return
            raise self._wrong_state(f"sleep at level {level:d}")
        with self._dying_of(f"it could not fall asleep at level {level:d}"):
            give_back(level)
        self._state_before_sleep, self._level, self.state = self.state, level, EngineState.ASLEEP

    def wake(self, restore: Callable[[SleepLevel], None]) -> None:
        """Asleep -> what it was before, once `restore` has brought back what the level took; awake -> awake."""
        self.check_alive()
        if self.state is not EngineState.ASLEEP:
            return
        with self._dying_of(f"it could not wake from level {self._level:d}"):
            restore(self._level)
        self.state = self._state_before_sleep

    def _check_awake(self, wanted: str) -> None:
        self.check_alive()
        if self.state is EngineState.ASLEEP:
            raise self._wrong_state(wanted)

    def _wrong_state(self, wanted: str) -> WrongEngineState:
        depth = f" at level {self._level:d}" if self.state is EngineState.ASLEEP else ""
        return WrongEngineState(f"the engine is {self.state}{depth}: it cannot {wanted}")

    @contextmanager
    def _dying_of(self, misfortune: str) -> Iterator[None]:
        # What was given back halfway is neither here nor there: there is no state to return to.
        try:
            yield
        except BaseException as error:
            self.state = EngineState.DEAD
            self._death = EngineDead(f"the engine is dead: {misfortune}: {type(error).__name__}: {error}")
            if isinstance(error, Exception):
                raise self._death from error
            raise
