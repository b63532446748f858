"""Copies from a checkpoint's tensors to a rank's shard of the parameters that they fill."""

from collections.abc import Sequence
from typing import NamedTuple

from rayinfer.layers.checkpoint_slices import CheckpointSlice
from rayinfer.layers.shards import ShardSlice

Index = tuple[slice | int, ...]


class Copy(NamedTuple):
    """A piece of a tensor and its index in the rank's parameter."""

    source: Index
    target: Index


def copies_for_shard(filled_slice: CheckpointSlice, shape: Sequence[int], cut: ShardSlice | None) -> list[Copy]:
    """List what a rank needs of a tensor, maybe nothing; `filled_slice` and `shape` are of the whole parameter.

    Sources are indices of the tensor as the model has it, that is, transposed if it `is_transposed`.
    """
    index = _full_index(filled_slice, shape)
    if cut is None:
        return [Copy((), tuple(index))]
    along, copies, first = index[cut.axis], [], 0
    filled = range(along, along + 1) if isinstance(along, int) else range(along.start, along.stop)
    # An axis that has one index in the parameter is none in the tensor.
    source_axis = sum(isinstance(part, slice) for part in index[: cut.axis])
    for kept in cut.ranges:
        start, stop = max(kept.start, filled.start), min(kept.stop, filled.stop)
        if start < stop:
            at = first + start - kept.start
            here = at if isinstance(along, int) else slice(at, at + stop - start)
            source: Index = ()
            if not isinstance(along, int):
                source = (*[slice(None)] * source_axis, slice(start - filled.start, stop - filled.start))
            copies.append(Copy(source, (*index[: cut.axis], here, *index[cut.axis + 1 :])))
        first += len(kept)
    return copies


def _full_index(filled_slice: CheckpointSlice, shape: Sequence[int]) -> list[slice | int]:
    """One entry for each axis, slices with both their ends."""
    index = filled_slice.index
    given = index if isinstance(index, tuple) else () if index is None else (index,)
    entries = [*given, *[slice(None)] * (len(shape) - len(given))]
    return [
        entry if isinstance(entry, int) else slice(*entry.indices(size)[:2])
        for entry, size in zip(entries, shape, strict=True)
    ]
