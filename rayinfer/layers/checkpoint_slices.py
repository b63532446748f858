"""Map from a checkpoint's tensors to the slices of a model's parameters that they fill."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

Index = slice | int | tuple[slice | int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointSlice:
    """A parameter, or some part of a stacked one, that one tensor fills."""

    parameter: str
    index: Index | None = None  # None: all of it
    is_transposed: bool = False  # the checkpoint holds [..., in_features, out_features]
    replaces: frozenset[str] = frozenset()  # the tensors that this one may stand for, all in one; then it is optional


class WeightLayout(ABC):
    """A module whose parameters are cut otherwise than the checkpoint's tensors."""

    @abstractmethod
    def checkpoint_slices(self, path: str) -> Mapping[str, CheckpointSlice]:
        """Name the tensors that fill this module, which stands at `path` in its model; all names in full."""


def checkpoint_slices(model: torch.nn.Module) -> dict[str, CheckpointSlice]:
    """Name every tensor that the model needs; a module's parameters are its tensors unless it has another layout."""
    slices: dict[str, CheckpointSlice] = {}
    for path, module in model.named_modules():
        if isinstance(module, WeightLayout):
            slices |= module.checkpoint_slices(path)
        else:
            names = [f"{path}.{kind}" if path else kind for kind, _ in module.named_parameters(recurse=False)]
            slices |= {name: CheckpointSlice(name) for name in names}
    return slices


def with_checkpoint_names(
    names: Mapping[str, str], slices: Mapping[str, CheckpointSlice]
) -> dict[str, CheckpointSlice]:
    """Rename the tensors of `slices` for a checkpoint whose names differ: replace each part of a name by `names`."""

    def renamed(name: str) -> str:
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        return name

    return {
        renamed(name): replace(part, replaces=frozenset(map(renamed, part.replaces))) for name, part in slices.items()
    }
