"""Messages between an engine and its routers."""

import msgspec

from rayinfer.outputs import StepMessage
from rayinfer.protocols import GenerationRequest
from rayinfer.wire import Decoder, decoder_of

VERSION = 3  # changes with everything that the other end could not read


class RouterHello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """A router's first message."""

    version: int
    key: bytes
    router_id: str


class Submit(msgspec.Struct, tag="submit", array_like=True, frozen=True):
    """Requests for the engine."""

    requests: list[GenerationRequest]


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """Requests to end."""

    request_ids: list[str]


class StepOutputs(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """The results of one engine step for the router."""

    message: StepMessage


class EndOfOutputs(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """The engine's final message; the reason is empty after an orderly shutdown."""

    reason: str


FROM_ROUTER: Decoder[RouterHello | Submit | Abort] = decoder_of(RouterHello | Submit | Abort)
FROM_ENGINE: Decoder[StepOutputs | EndOfOutputs] = decoder_of(StepOutputs | EndOfOutputs)
