"""All engines of a model, stopped and started together."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from rayinfer.errors import NotReady, RayinferError
from rayinfer.protocols import EngineControl
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.engine_set import RUNNING

logger = logging.getLogger(__name__)

PAUSED = "paused"


class EngineFleet:
    """The EngineControl of a model: it acts on the engines that there are at the moment, all at once.

    Every engine gets the command even if another fails, or the caller leaves; the first error is raised at the end.
    An engine that joins between `pause` and `resume` is paused, too, unless the others run again: another router may
    have resumed them.
    """

    def __init__(self, model_name: str, engines: Mapping[str, EngineLink]) -> None:
        self._model_name = model_name
        self._engines = engines
        self._is_paused = False
        self._num_pausing = 0  # calls of `pause` that have not returned: reports may be older than they are
        self._pausing: set[asyncio.Task[None]] = set()  # engines that have joined

    def note_join(self, joined: EngineLink) -> None:
        """Pause an engine that joins during a pause."""
        if not self._is_paused:
            return
        others = [engine for engine in self._engines.values() if engine is not joined]
        if not self._num_pausing and any(engine.stats.state == RUNNING for engine in others):
            self._is_paused = False
            return
        joined.stats = replace(joined.stats, state=PAUSED)  # until its first report: it is preferred to no other
        task = asyncio.get_running_loop().create_task(self._pause_joined(joined))
        self._pausing.add(task)
        task.add_done_callback(self._pausing.discard)

    async def pause(self) -> None:
        """See EngineControl."""
        was_paused, self._is_paused = self._is_paused, True  # at once: an engine may join meanwhile
        self._num_pausing += 1
        try:
            await self._have_all(lambda engine: engine.pause())
        except BaseException:
            self._is_paused = was_paused
            raise
        finally:
            self._num_pausing -= 1
        for engine in self._engines.values():
            engine.stats = replace(engine.stats, state=PAUSED)  # its next report may be half a second away

    async def resume(self) -> None:
        """See EngineControl."""
        self._is_paused = False
        await self._have_all(lambda engine: engine.resume())

    async def sleep(self, level: int) -> None:
        """See EngineControl."""
        await self._have_all(lambda engine: engine.sleep(level))

    async def wake(self) -> None:
        """See EngineControl."""
        await self._have_all(lambda engine: engine.wake())

    async def states(self) -> list[str]:
        """Ask every engine; their last reports may be a heartbeat old."""
        states = await asyncio.gather(*(engine.states() for engine in self._known_engines()))
        return [state for of_one in states for state in of_one]

    async def _pause_joined(self, joined: EngineLink) -> None:
        try:
            await joined.carry_out(lambda engine: engine.pause())
        except (RayinferError, OSError) as error:  # it is asleep, or gone already
            logger.warning("engine %s joined during a pause and was not paused: %s", joined.name, error)

    async def _have_all(self, action: Callable[[EngineControl], Coroutine[Any, Any, None]]) -> None:
        outcomes = await asyncio.gather(
            *(engine.carry_out(action) for engine in self._known_engines()), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def _known_engines(self) -> list[EngineLink]:
        if not self._engines:
            raise NotReady(f"model {self._model_name!r} has no engine at the moment")
        return list(self._engines.values())
