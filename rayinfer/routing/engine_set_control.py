"""Control of all engines of a model together: pause, resume, sleep, wake."""

import asyncio
import logging
from dataclasses import replace

from rayinfer.errors import NotReady, RayinferError
from rayinfer.outputs import EngineState
from rayinfer.protocols import ControlAction, LoadAdapter, Pause, Resume
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.engine_set import EngineSet

logger = logging.getLogger(__name__)


class EngineSetControl:
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

    async def control(self, action: ControlAction) -> list[str]:
        """See EngineControl. Every engine is asked, as its last report may be a heartbeat old.

        An adapter is read by one of them: others read it with the first request that needs it there.
        """
        if isinstance(action, Pause):
            return await self._pause(action)
        if isinstance(action, LoadAdapter):
            return await self._least_loaded().control(action)
        if isinstance(action, Resume):
            self._is_paused = False
        return await self._run_on_all(action)

    async def _pause(self, action: Pause) -> list[str]:
        was_paused, self._is_paused = self._is_paused, True  # at once: an engine may join meanwhile
        self._num_pausing += 1
        try:
            states = await self._run_on_all(action)
        except BaseException:
            self._is_paused = was_paused
            raise
        finally:
            self._num_pausing -= 1
        for engine in self._engines.values():
            engine.stats = replace(engine.stats, state=EngineState.PAUSED)  # its next report may be half a second away
        return states

    async def _pause_joined(self, joined: EngineLink) -> None:
        try:
            await joined.control(Pause())
        except (RayinferError, OSError) as error:  # it is asleep, or gone already
            logger.warning("engine %s joined during a pause and was not paused: %s", joined.name, error)

    async def _run_on_all(self, action: ControlAction) -> list[str]:
        outcomes = await asyncio.gather(
            *(engine.control(action) for engine in self._all_engines()), return_exceptions=True
        )
        states: list[str] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            states += outcome
        return states

    def _least_loaded(self) -> EngineLink:
        able = [engine for engine in self._all_engines() if not engine.is_draining] or self._all_engines()
        return min(able, key=lambda engine: (engine.stats.state != EngineState.RUNNING, engine.num_in_flight))

    def _all_engines(self) -> list[EngineLink]:
        if not self._engines:
            raise NotReady(f"model {self._model_name!r} has no engine at the moment")
        return list(self._engines.values())
