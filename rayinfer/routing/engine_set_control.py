"""Control of all engines of a model together: pause, resume, sleep, wake."""

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from rayinfer.errors import NotReady, RayinferError
from rayinfer.outputs import EngineState
from rayinfer.protocols import ControlAction, LoadAdapter, Pause, Resume
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.engine_set import EngineSet

logger = logging.getLogger(__name__)

SETTLE_S = 3.0  # after a command, until an engine's reports are younger than it


class EngineSetControl:
    """EngineControl of a model: acts on all engines of the moment concurrently.

    Every engine gets the command even if another fails or the caller is cancelled; the first error is raised at the
    end. An engine that joins while the model is paused is paused too. The model is paused from `pause` to `resume`;
    another router may run either of them, so reports of the other engines count as well, except those that may be
    older than a pause.
    """

    def __init__(self, model_name: str, engines: EngineSet) -> None:
        self._model_name = model_name
        self._engines = engines.links
        self.settle_s = SETTLE_S
        self._is_paused = False
        self._settled_at: dict[str, float] = {}  # by engine that this router has paused: when its reports count again
        self._pausing: set[asyncio.Task[None]] = set()  # engines that have joined
        engines.join_listeners.append(self._note_join)

    def _note_join(self, joined: EngineLink) -> None:
        """Pause an engine that joins during a pause."""
        others = self._others(joined)
        if self._any_runs(others):
            self._is_paused = False  # another router has resumed them
        elif self._is_paused or any(engine.stats.state == EngineState.PAUSED for engine in others):
            joined.stats = replace(joined.stats, state=EngineState.PAUSED)  # until its first report
            self._settled_at[joined.name] = math.inf
            task = asyncio.get_running_loop().create_task(self._pause_joined(joined))
            self._pausing.add(task)
            task.add_done_callback(self._pausing.discard)

    def _others(self, joined: EngineLink) -> list[EngineLink]:
        return [engine for engine in self._engines.values() if engine is not joined]

    def _any_runs(self, engines: Sequence[EngineLink]) -> bool:
        """Whether one of the engines runs, by a report that is younger than any pause by this router."""
        now = asyncio.get_running_loop().time()
        return any(
            engine.stats.state == EngineState.RUNNING and now >= self._settled_at.get(engine.name, 0)
            for engine in engines
        )

    async def control(self, action: ControlAction) -> list[str]:
        """See EngineControl. Every engine is asked, as its last report may be a heartbeat old.

        An adapter is read by one of them: others read it with the first request that needs it there.
        """
        if isinstance(action, Pause):
            return await self._pause(action)
        if isinstance(action, LoadAdapter):
            return await self._least_loaded().control(action)
        if isinstance(action, Resume):
            return await self._resume(action)
        return await self._run_on_all(action)

    async def _pause(self, action: Pause) -> list[str]:
        was_paused, self._is_paused = self._is_paused, True  # at once: an engine may join meanwhile
        names = list(self._engines)
        self._settled_at |= dict.fromkeys(names, math.inf)
        try:
            states = await self._run_on_all(action)
        except NotReady:
            self._is_paused = was_paused
            raise
        finally:  # after an error, too: other engines are paused
            self._settled_at |= dict.fromkeys(names, self._settles_at())
        self._assume(EngineState.PAUSED)
        return states

    async def _resume(self, action: Resume) -> list[str]:
        self._is_paused = False
        self._settled_at.clear()
        states = await self._run_on_all(action)
        self._assume(EngineState.RUNNING)
        return states

    def _assume(self, state: EngineState) -> None:
        for engine in self._engines.values():
            engine.stats = replace(engine.stats, state=state)  # its next report may be half a second away

    def _settles_at(self) -> float:
        return asyncio.get_running_loop().time() + self.settle_s

    async def _pause_joined(self, joined: EngineLink) -> None:
        """Pause an engine, and resume it if the reports turn out to have been older than another router's `resume`."""
        try:
            await joined.control(Pause())
            self._settled_at[joined.name] = self._settles_at()
            await asyncio.sleep(self.settle_s)
            if self._any_runs(self._others(joined)):
                await joined.control(Resume())
        except (RayinferError, OSError) as error:  # it is asleep, or gone already
            logger.warning("engine %s joined during a pause and was not paused: %s", joined.name, error)
        finally:
            if self._engines.get(joined.name) is not joined:
                self._settled_at.pop(joined.name, None)

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
