"""Pooling: the hidden states of a text's tokens to one vector."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import torch

Pooling = Literal["cls", "mean", "max", "last", "weightedmean"]


def pool(hidden: torch.Tensor, lengths: Sequence[int], pooling: Pooling) -> torch.Tensor:
    """Hidden [num_tokens, width] of texts of these `lengths`, one after the other, -> [num_texts, width]."""
    if pooling in ("cls", "last"):
        ends = torch.tensor(lengths, device=hidden.device).cumsum(0)
        return hidden[ends - 1] if pooling == "last" else hidden[ends - torch.tensor(lengths, device=hidden.device)]
    return torch.stack([_POOLINGS[pooling](text) for text in torch.split(hidden, list(lengths))])


def _mean(text: torch.Tensor) -> torch.Tensor:
    return text.mean(0, dtype=torch.float32).to(text.dtype)


def _max(text: torch.Tensor) -> torch.Tensor:
    return text.amax(0)


def _weighted_mean(text: torch.Tensor) -> torch.Tensor:
    """Weigh tokens by their place, the later the more."""
    weights = torch.arange(1, len(text) + 1, device=text.device, dtype=torch.float32)
    return ((text * weights[:, None]).sum(0) / weights.sum()).to(text.dtype)


_POOLINGS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"mean": _mean, "max": _max, "weightedmean": _weighted_mean}
)
