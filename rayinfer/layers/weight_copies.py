"""From a checkpoint's tensors to a rank's part of the parameters that they fill: what is copied where."""

from collections.abc import Sequence
from typing import NamedTuple

from rayinfer.layers.shards import ShardSlice
from rayinfer.layers.weight_places import WeightPlace

Index = tuple[slice | int, ...]


class Copy(NamedTuple):
    """A piece of a tensor and where it goes in the rank's parameter."""

    source: Index
    target: Index


def copies_of_part(place: WeightPlace, shape: Sequence[int], cut: ShardSlice | None) -> list[Copy]:
    """List what a rank needs of a tensor, maybe nothing; `place` and `shape` are of the whole parameter.

    Sources are indices of the tensor as the model has it, that is, turned if it `is_transposed`.
    """
    index = _full_index(place, shape)
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


def _full_index(place: WeightPlace, shape: Sequence[int]) -> list[slice | int]:
    """One entry for each axis, slices with both their ends."""
    given = place.index if isinstance(place.index, tuple) else () if place.index is None else (place.index,)
    entries = [*given, *[slice(None)] * (len(shape) - len(given))]
    return [
        entry if isinstance(entry, int) else slice(*entry.indices(size)[:2])
        for entry, size in zip(entries, shape, strict=True)
    ]
