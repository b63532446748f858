"""Commands of an executor beside steps: copies of KV blocks, and levels of sleep."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

import msgspec

from rayinfer.errors import InvalidParameter


class BlockCopy(msgspec.Struct, tag="copy", array_like=True, frozen=True, kw_only=True):
    """Whole blocks to be copied from one pool to the other, source_blocks[i] to target_blocks[i]."""

    direction: Literal["out", "in"]  # from the model's pool to the second one, or back
    source_blocks: Sequence[int]
    target_blocks: Sequence[int]


class AdapterFacts(msgspec.Struct, tag="adapter", array_like=True, frozen=True):
    """An adapter that was read: the digest of its content, its largest rank and the bytes of its tensors."""

    digest: str
    rank: int
    num_bytes: int  # as they were saved
    slot_bytes: int  # in the model's type, of all ranks


class SleepLevel(IntEnum):
    """Memory that a sleeping engine frees; Megatron's persist, offload and recompute."""

    PERSIST = 0  # nothing
    OFFLOAD = 1  # unused blocks; those of running requests are kept in host memory
    RECOMPUTE = 2  # all of it: weights are loaded and tokens computed again


def sleep_level(level: int) -> SleepLevel:
    """Check a level; raises InvalidParameter."""
    if isinstance(level, bool) or not isinstance(level, int) or level not in tuple(SleepLevel):
        raise InvalidParameter(f"level must be 0, 1 or 2, got {level!r}", "level")
    return SleepLevel(level)
