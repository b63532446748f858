"""Messages between ranks before the first step: proofs of the key, torch's store, and sizes."""

from typing import Literal

import msgspec

Purpose = Literal["commands", "beats", "store"]  # of the lines between rank 0 and each other rank


class Challenge(msgspec.Struct, tag="challenge", array_like=True, frozen=True):
    """Rank 0's first message on each connection: the nonce that the other end has to sign."""

    nonce: bytes


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """A rank's answer, signed with the key, which itself is never sent."""

    rank: int
    world_size: int
    purpose: Purpose
    nonce: bytes  # for rank 0 to sign
    proof: bytes


class Welcome(msgspec.Struct, tag="welcome", array_like=True, frozen=True):
    """Rank 0's signature, on the line for commands, once all ranks are there."""

    proof: bytes


class StoreCall(msgspec.Struct, tag="store-call", array_like=True, frozen=True):
    """One operation on torch's store, which rank 0 holds."""

    operation: Literal["set", "get", "add", "delete"]
    key: str
    value: bytes = b""
    amount: int = 0  # to add


class StoreAnswer(msgspec.Struct, tag="store-answer", array_like=True, frozen=True):
    """The value under the key after the operation, or None where there is none."""

    value: bytes | None


class Numbers(msgspec.Struct, tag="numbers", array_like=True, frozen=True):
    """A rank's own capacities, or in rank 0's reply those that all ranks have."""

    values: list[int]
