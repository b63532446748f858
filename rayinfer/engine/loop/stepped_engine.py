"""Interface of an engine that `AsyncEngine` runs in its thread."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import EngineStats, TokenDelta
from rayinfer.protocols import ControlAction, GenerationRequest, ModelDescription


class SteppedEngine(Protocol):
    """Synchronous and single-threaded: requests are added, and each step returns what they have gained or their end."""

    description: ModelDescription
    on_plan: Callable[[int], None]  # called with the number of tokens of a step
    on_ready: Callable[[], None]  # called from any thread once a step can go on that waited for something else

    def add_request(self, request: GenerationRequest) -> None:
        """Queue a request; raises RequestError for one that could never finish, EngineDead."""
        ...

    def start_compiling(self, request: GenerationRequest) -> Future[Any] | None:
        """Start to compile, or to read, what a request needs before it is added; None if there is nothing.

        Raises RequestError.
        """
        ...

    def start_reading(self, action: ControlAction) -> Future[Any] | None:
        """Start to read what an action needs before it runs; None if there is nothing."""
        ...

    def compile_grammar(self, spec: StructuredOutputsParams) -> Future[Any]:
        """Start to compile a grammar beside the steps, from any thread; raises InvalidParameter without grammars."""
        ...

    def abort(self, request_id: str) -> TokenDelta | None:
        """Abort a request; None if unknown or already finished and reported."""
        ...

    def step(self) -> list[TokenDelta]:
        """Compute one step."""
        ...

    def release_unused(self) -> None:
        """Free memory that no request needs any more, once all that has waited for its needs was added."""
        ...

    def check_alive(self) -> None:
        """Raise EngineDead if no step can be computed any more."""
        ...

    def control(self, action: ControlAction) -> str:
        """Run an action between two steps; returns the state after it."""
        ...

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether requests are in any state before their end, or ends are yet to be returned."""
        ...

    @property
    def can_advance(self) -> bool:
        """Whether another step would advance a request, now or after `wait_s`."""
        ...

    @property
    def wait_s(self) -> float:
        """Seconds for which the next step is better delayed, unless requests come or leave meanwhile."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges as they are now."""
        ...

    def take_block_events(self) -> tuple[list[bytes], list[bytes]]:
        """Return the hashes added to and removed from the prefix cache since the last call."""
        ...

    def exit(self) -> None:
        """Free everything that the engine holds."""
        ...
