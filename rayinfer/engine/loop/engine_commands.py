"""Commands from event loops to the engine's thread."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rayinfer.engine.loop.router_subscriptions import RouterSubscription
from rayinfer.protocols import ControlAction, GenerationRequest


@dataclass(frozen=True, slots=True)
class Submit:
    """Add requests."""

    requests: Sequence[GenerationRequest]
    router: RouterSubscription


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort requests."""

    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Abort the requests of a router that has gone."""

    router: RouterSubscription


@dataclass(frozen=True, slots=True)
class RunControlAction:
    """An action on the whole engine, and the future of the state after it."""

    action: ControlAction
    done: Future[str] = field(default_factory=Future)
    is_read: bool = False  # what it needs of files


class Continue:
    """Take the next step: what it waited for is there."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Add a request whose grammar was compiled, or whose adapter was read, or refuse it."""

    request: GenerationRequest
    compiling: Future[Any]


class Stop:
    """Stop the loop; commands after it are not run."""


Command = Submit | Abort | Unsubscribe | RunControlAction | Continue | Compiled | Stop
