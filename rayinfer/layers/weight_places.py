"""The map from a checkpoint's tensors to a model's parameters."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

Index = slice | int | tuple[slice | int, ...]


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """A parameter, or some part of a stacked one, that one tensor fills."""

    parameter: str
    index: Index | None = None  # None: all of it
    is_transposed: bool = False  # the checkpoint holds [in_features, out_features]
    instead_of: frozenset[str] = frozenset()  # not needed itself: the tensors that it stands for, all in one


class WeightLayout(ABC):
    """A module whose parameters are cut otherwise than the checkpoint's tensors."""

    @abstractmethod
    def weight_places(self, path: str) -> Mapping[str, WeightPlace]:
        """Name the tensors that fill this module, which stands at `path` in its model; all names in full."""


def weight_places(model: torch.nn.Module) -> dict[str, WeightPlace]:
    """Name every tensor that the model needs; a module's parameters are its tensors unless it has another layout."""
    places: dict[str, WeightPlace] = {}
    for path, module in model.named_modules():
        if isinstance(module, WeightLayout):
            places |= module.weight_places(path)
        else:
            names = [f"{path}.{kind}" if path else kind for kind, _ in module.named_parameters(recurse=False)]
            places |= {name: WeightPlace(name) for name in names}
    return places


def in_words_of(checkpoint_words: Mapping[str, str], places: Mapping[str, WeightPlace]) -> dict[str, WeightPlace]:
    """Rename the places as a checkpoint does that has other words for parts of our names."""

    def spelt(name: str) -> str:
        for ours, theirs in checkpoint_words.items():
            name = name.replace(ours, theirs)
        return name

    return {
        spelt(name): replace(place, instead_of=frozenset(map(spelt, place.instead_of)))
        for name, place in places.items()
    }
