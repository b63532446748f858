"""Messages between an engine and its routers."""

import msgspec

from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import StepMessage
from rayinfer.protocols import GenerationRequest
from rayinfer.wire import Decoder, decoder_of

VERSION = 5  # changes with everything that the other end could not read


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


class CompileGrammar(msgspec.Struct, tag="compile", array_like=True, frozen=True):
    """A grammar that requests of the router are to be held to."""

    number: int  # of the call, which the reply repeats
    spec: StructuredOutputsParams


class GrammarReply(msgspec.Struct, tag="compiled", array_like=True, frozen=True):
    """The end of a compilation."""

    number: int
    refusal: str | None = None  # the grammar's fault
    failure: str | None = None  # the engine's


class StepOutputs(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """The results of one engine step for the router."""

    message: StepMessage


class EndOfOutputs(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """The engine's final message; the reason is empty after an orderly shutdown."""

    reason: str


FROM_ROUTER: Decoder[RouterHello | Submit | Abort | CompileGrammar] = decoder_of(
    RouterHello | Submit | Abort | CompileGrammar
)
FROM_ENGINE: Decoder[StepOutputs | GrammarReply | EndOfOutputs] = decoder_of(StepOutputs | GrammarReply | EndOfOutputs)
