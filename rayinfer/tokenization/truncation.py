"""Truncation of prompts to a number of tokens."""

from dataclasses import dataclass
from typing import Literal

TruncationSide = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Truncation:
    """Number of tokens of a prompt to keep, and the side on which others are removed."""

    num_tokens: int
    side: TruncationSide = "left"

    def cut(self, token_ids: list[int]) -> list[int]:
        """Return the tokens that are kept."""
        if len(token_ids) <= self.num_tokens:
            return token_ids
        first = len(token_ids) - self.num_tokens
        return token_ids[first:] if self.side == "left" else token_ids[: self.num_tokens]
