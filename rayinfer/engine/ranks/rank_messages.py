"""Messages between the ranks of an engine, beside steps (StepPlan) and copies of blocks (BlockCopy)."""

from typing import Literal

import msgspec

from rayinfer import wire
from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan

Purpose = Literal["commands", "heartbeats", "store"]  # of the connections between rank 0 and each other rank


# Before the first step


class Challenge(msgspec.Struct, tag="challenge", array_like=True, frozen=True):
    """Rank 0's first message on each connection: the nonce that the other end has to sign."""

    nonce: bytes


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """A rank's reply to the challenge, signed with the key, which itself is never sent."""

    rank: int
    world_size: int
    purpose: Purpose
    nonce: bytes  # for rank 0 to sign
    proof: bytes


class Welcome(msgspec.Struct, tag="welcome", array_like=True, frozen=True):
    """Rank 0's signature, on the connection for commands, once all ranks are connected."""

    proof: bytes


class StoreRequest(msgspec.Struct, tag="store-request", array_like=True, frozen=True):
    """One operation on torch's store, which rank 0 holds."""

    operation: Literal["set", "get", "add", "delete"]
    key: str
    value: bytes = b""
    amount: int = 0  # to add


class StoreReply(msgspec.Struct, tag="store-reply", array_like=True, frozen=True):
    """The value under the key after the operation, or None where there is none."""

    value: bytes | None


class ReduceMin(msgspec.Struct, tag="reduce-min", array_like=True, frozen=True):
    """A rank's own values, or in rank 0's reply their elementwise minimum over all ranks."""

    values: list[int]


# At all times, in both directions, on a connection of its own


class Heartbeat(msgspec.Struct, tag="heartbeat", array_like=True, frozen=True):
    """A sign of life, sent whatever the rank computes."""


# Commands of rank 0, which every rank runs in the order in which they were sent


class Release(msgspec.Struct, tag="release", array_like=True, frozen=True):
    """Release memory; acknowledged when done."""

    level: SleepLevel
    blocks_in_use: list[int]
    window_pages_in_use: list[int] = []


class Restore(msgspec.Struct, tag="restore", array_like=True, frozen=True):
    """Allocate the memory again; acknowledged when done."""

    level: SleepLevel


class ReadAdapter(msgspec.Struct, tag="read-adapter", array_like=True, frozen=True):
    """Start to read an adapter beside the next commands; not answered."""

    folder: str


class LoadAdapter(msgspec.Struct, tag="load-adapter", array_like=True, frozen=True):
    """Load an adapter, which may have been read before; answered with its AdapterFacts or by RefusedAdapter."""

    folder: str


class DropAdapter(msgspec.Struct, tag="drop-adapter", array_like=True, frozen=True):
    """Forget an adapter; not answered."""

    digest: str


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True):
    """The last command."""


# Replies to rank 0


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    """Acknowledgement of Release and Restore."""


class RefusedAdapter(msgspec.Struct, tag="refused-adapter", array_like=True, frozen=True):
    """A rank's refusal to load an adapter."""

    reason: str


class StageResult(msgspec.Struct, tag="stage-result", array_like=True, frozen=True):
    """A later stage's result of a step; the last stage's has its tokens."""

    busy_s: float  # without waiting for the stage before it
    sampled: SampledTokens | None = None


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """A rank's final message: the reason why it exits."""

    reason: str
    is_consequence: bool = False  # of another rank's exit, as far as this one can tell
    failed_at: float = 0.0  # by the clock of its machine


RankMessage = (
    Challenge
    | Hello
    | Welcome
    | StoreRequest
    | StoreReply
    | ReduceMin
    | Heartbeat
    | StepPlan
    | BlockCopy
    | Release
    | Restore
    | ReadAdapter
    | LoadAdapter
    | DropAdapter
    | Shutdown
    | Done
    | AdapterFacts
    | RefusedAdapter
    | StageResult
    | Failed
)
DECODER: wire.Decoder[RankMessage] = wire.decoder_of(RankMessage)
