"""Residual connections with the norm before the inner part, or behind the sum."""

from abc import ABC, abstractmethod
from typing import Any

import torch


class Residual(torch.nn.Module, ABC):
    """A part of a layer together with its norm and the sum that it adds to."""

    def __init__(self, inner: torch.nn.Module, norm: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.norm = norm

    @abstractmethod
    def forward(self, x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape; `arguments` are what the part itself needs beside it."""


class PreNorm(Residual):
    """x + inner(norm(x)), as in T5."""

    def forward(self, x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        """See Residual."""
        out: torch.Tensor = self.inner.forward(self.norm.forward(x), *arguments)
        return x + out


class PostNorm(Residual):
    """norm(x + inner(x)), as in the first transformer (Vaswani et al. 2017)."""

    def forward(self, x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        """See Residual."""
        out: torch.Tensor = self.norm.forward(x + self.inner.forward(x, *arguments))
        return out
