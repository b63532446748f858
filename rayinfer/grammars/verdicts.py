"""Verdicts of engines on the grammars that answers are to be held to."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from rayinfer.errors import EngineDead, InvalidParameter
from rayinfer.grammars.compilation import grammar_digest
from rayinfer.grammars.spec import StructuredOutputsParams

MAX_VERDICTS = 4096

Compile = Callable[[StructuredOutputsParams], Awaitable[None]]


class GrammarVerdicts:
    """Has an engine compile each new grammar before requests with it are admitted, and keeps the verdict.

    One grammar after the other: those that wait hold neither places in queues nor an engine's credits. The engine keeps
    what it has compiled, so the request that follows finds it there. `find_engine` returns the function by which an
    engine compiles, which raises InvalidParameter and EngineDead; None while there is no engine.
    """

    def __init__(self, find_engine: Callable[[], Compile | None]) -> None:
        self._find_engine = find_engine
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()  # by digest: why it is refused, if it is
        self._lock = asyncio.Lock()

    async def check(self, spec: StructuredOutputsParams) -> bool:
        """Wait until the grammar is known to compile; raises InvalidParameter for one that an engine refuses.

        False where there is no engine. One that is lost meanwhile leaves the verdict to the engine that gets the
        request, as a grammar that may end engines is not tried again here.
        """
        digest = grammar_digest(spec)
        if not self._is_known(digest):
            async with self._lock:
                if not self._is_known(digest):  # others may have waited for the same one
                    return await self._ask(spec, digest)
        return True

    def clear(self) -> None:
        """Forget all verdicts: an engine that joins may be of another version."""
        self._verdicts.clear()

    def _is_known(self, digest: bytes) -> bool:
        """Return whether the grammar has been compiled; raises InvalidParameter where it was refused."""
        if digest not in self._verdicts:
            return False
        self._verdicts.move_to_end(digest)
        if (refusal := self._verdicts[digest]) is not None:
            raise InvalidParameter(refusal, "structured_outputs")
        return True

    async def _ask(self, spec: StructuredOutputsParams, digest: bytes) -> bool:
        compile_grammar = self._find_engine()
        if compile_grammar is None:
            return False
        try:
            await compile_grammar(spec)
        except InvalidParameter as error:
            self._keep(digest, error.message)
            raise
        except EngineDead:
            return True
        self._keep(digest, None)
        return True

    def _keep(self, digest: bytes, refusal: str | None) -> None:
        self._verdicts[digest] = refusal
        while len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
