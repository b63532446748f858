"""Drafter by prompt lookup: what followed the latest tokens where they stood before, in prompt, output or answers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.engine.drafting.matches import LONGEST_MATCH, longest_match
from rayinfer.engine.drafting.recent_answers import RecentAnswers


class PromptLookup:
    """Drafts from the longest match of a request's last tokens with earlier ones, of at least two tokens.

    Of equal matches it takes the latest. A search is one pass over the request's tokens. A longer match in recent
    answers to the same tenant goes before one in the request itself.
    """

    def __init__(self, recent: RecentAnswers | None = None) -> None:
        self._recent = recent

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        """See Drafter."""
        return [self._draft(each) for each in rows]

    def _draft(self, row: DraftRow) -> list[int]:
        length, own = continuation(row.token_ids, row.limit)
        if self._recent is None or length == LONGEST_MATCH:
            return own
        length_elsewhere, other = self._recent.find(row.salt, row.token_ids, row.limit)
        return other if length_elsewhere > length else own


def continuation(token_ids: npt.NDArray[np.int32], limit: int) -> tuple[int, list[int]]:
    """Return the length of the longest earlier match of the last tokens, and what followed it.

    A repetition that goes on is continued.
    """
    match = longest_match(token_ids, token_ids)
    if match is None:
        return 0, []
    first = match.end + 1
    period = len(token_ids) - first
    return match.length, token_ids[first + np.arange(limit) % period].tolist()
