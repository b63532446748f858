"""Drafter by prompt lookup: what followed the latest tokens where they stood before, in prompt or output."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rayinfer.engine.drafting.drafter import DraftRow

LONGEST_MATCH = 16  # tokens that are compared at most


class PromptLookup:
    """Drafts from the longest match of a request's last tokens with earlier ones, of at least two tokens.

    Of equal matches it takes the latest. It keeps no state: a search is one pass over the request's tokens.
    """

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        """See Drafter."""
        return [continuation(each.token_ids, each.limit) for each in rows]


def continuation(token_ids: npt.NDArray[np.int32], limit: int) -> list[int]:
    """Return what followed the longest earlier match of the last tokens; a repetition that goes on is continued."""
    if len(token_ids) < 3:
        return []
    ends = np.flatnonzero(token_ids[1:-1] == token_ids[-1]) + 1  # where the last token stood before
    ends = ends[token_ids[ends - 1] == token_ids[-2]]
    if not len(ends):
        return []
    for length in range(2, LONGEST_MATCH):
        if len(ends) == 1:
            break
        longer = ends[ends >= length]
        longer = longer[token_ids[longer - length] == token_ids[-1 - length]]
        if not len(longer):
            break
        ends = longer
    first = int(ends[-1]) + 1
    period = len(token_ids) - first
    found: list[int] = token_ids[first + np.arange(limit) % period].tolist()
    return found
