"""Commands from event loops to the engine's thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.loop.router_subscriptions import RouterSubscription
from rayinfer.protocols import GenerationRequest


@dataclass(frozen=True, slots=True)
class Submit:
    """Take requests."""

    requests: Sequence[GenerationRequest]
    router: RouterSubscription


@dataclass(frozen=True, slots=True)
class Abort:
    """End requests."""

    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Forget:
    """The router is gone: end what it asked for."""

    router: RouterSubscription


@dataclass(frozen=True, slots=True)
class Change:
    """An action on the engine as a whole, and the future of its result."""

    action: Callable[[Engine], None]
    done: Future[None] = field(default_factory=Future)


class Stop:
    """End the loop; nothing after it is carried out."""


Command = Submit | Abort | Forget | Change | Stop
