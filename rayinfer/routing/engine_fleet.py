"""All engines of a model, stopped and started together."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from rayinfer.errors import NotReady
from rayinfer.protocols import EngineControl
from rayinfer.routing.engine_link import EngineLink


class EngineFleet:
    """The EngineControl of a model: it acts on the engines that there are at the moment, all at once.

    Every engine gets its turn even if another cannot do it, or the caller leaves; the first error is raised at the end.
    An engine that joins later starts as any other: running.
    """

    def __init__(self, model_name: str, engines: Mapping[str, EngineLink]) -> None:
        self._model_name = model_name
        self._engines = engines

    async def pause(self) -> None:
        """See EngineControl."""
        await self._have_all(lambda engine: engine.pause())

    async def resume(self) -> None:
        """See EngineControl."""
        await self._have_all(lambda engine: engine.resume())

    async def sleep(self, level: int) -> None:
        """See EngineControl."""
        await self._have_all(lambda engine: engine.sleep(level))

    async def wake(self) -> None:
        """See EngineControl."""
        await self._have_all(lambda engine: engine.wake())

    async def states(self) -> list[str]:
        """Ask every engine; what they told last may be a heartbeat old."""
        states = await asyncio.gather(*(engine.states() for engine in self._known_engines()))
        return [state for of_one in states for state in of_one]

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
