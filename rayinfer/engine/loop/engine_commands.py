"""Commands from event loops to the engine's thread."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from rayinfer.engine.loop.router_subscriptions import RouterLine
from rayinfer.protocols import ControlAction, GenerationRequest


@dataclass(frozen=True, slots=True)
class Submit:
    """Take requests."""

    requests: Sequence[GenerationRequest]
    router: RouterLine


@dataclass(frozen=True, slots=True)
class Abort:
    """End requests."""

    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Forget:
    """The router is gone: end what it asked for."""

    router: RouterLine


@dataclass(frozen=True, slots=True)
class Change:
    """An action on the engine as a whole, and the future of the state after it."""

    action: ControlAction
    done: Future[str] = field(default_factory=Future)


class Stop:
    """End the loop; nothing after it is carried out."""


Command = Submit | Abort | Forget | Change | Stop
