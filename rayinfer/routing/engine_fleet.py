"""Control of all engines of a model together: pause, resume, sleep, wake."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from rayinfer.errors import NotReady, RayinferError
from rayinfer.outputs import EngineState
from rayinfer.protocols import EngineControl
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.engine_set import EngineSet

logger = logging.getLogger(__name__)


class EngineFleet:
    """EngineControl of a model: acts on all engines of the moment concurrently.

    Every engine gets the command even if another fails or the caller is cancelled; the first error is raised at the
    end. An engine that joins between `pause` and `resume` is paused too, unless the others run again: another router
    may have resumed them.
    """

    def __init__(self, model_name: str, engines: EngineSet) -> None:
        self._model_name = model_name
        self._engines = engines.links
        self._is_paused = False
        self._num_pausing = 0  # calls of `pause` that have not returned: reports may be older
        self._pausing: set[asyncio.Task[None]] = set()  # engines that have joined
        engines.join_listeners.append(self._note_join)

    def _note_join(self, joined: EngineLink) -> None:
        """Pause an engine that joins during a pause."""
        if not self._is_paused:
            return
        others = [engine for engine in self._engines.values() if engine is not joined]
        if not self._num_pausing and any(engine.stats.state == EngineState.RUNNING for engine in others):
            self._is_paused = False
            return
        joined.stats = replace(joined.stats, state=EngineState.PAUSED)  # until its first report
        task = asyncio.get_running_loop().create_task(self._pause_joined(joined))
        self._pausing.add(task)
        task.add_done_callback(self._pausing.discard)

    async def pause(self) -> None:
        """See EngineControl."""
        was_paused, self._is_paused = self._is_paused, True  # at once: an engine may join meanwhile
        self._num_pausing += 1
        try:
            await self._run_on_all(lambda engine: engine.pause())
        except BaseException:
            self._is_paused = was_paused
            raise
        finally:
            self._num_pausing -= 1
        for engine in self._engines.values():
            engine.stats = replace(engine.stats, state=EngineState.PAUSED)  # its next report may be half a second away

    async def resume(self) -> None:
        """See EngineControl."""
        self._is_paused = False
        await self._run_on_all(lambda engine: engine.resume())

    async def sleep(self, level: int) -> None:
        """See EngineControl."""
        await self._run_on_all(lambda engine: engine.sleep(level))

    async def wake(self) -> None:
        """See EngineControl."""
        await self._run_on_all(lambda engine: engine.wake())

    async def states(self) -> list[str]:
        """Ask every engine; their last reports may be a heartbeat old."""
        states = await asyncio.gather(*(engine.states() for engine in self._all_engines()))
        return [state for of_one in states for state in of_one]

    async def _pause_joined(self, joined: EngineLink) -> None:
        try:
            await joined.run_action(lambda engine: engine.pause())
        except (RayinferError, OSError) as error:  # it is asleep, or gone already
            logger.warning("engine %s joined during a pause and was not paused: %s", joined.name, error)

    async def _run_on_all(self, action: Callable[[EngineControl], Coroutine[Any, Any, None]]) -> None:
        outcomes = await asyncio.gather(
            *(engine.run_action(action) for engine in self._all_engines()), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def _all_engines(self) -> list[EngineLink]:
        if not self._engines:
            raise NotReady(f"model {self._model_name!r} has no engine at the moment")
        return list(self._engines.values())
