"""Search for the place in a text that ends like another."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LONGEST_MATCH = 16  # tokens that are compared at most


class Match(NamedTuple):
    """Place of the last tokens in a text."""

    length: int  # tokens that are equal
    end: int  # index of the last of them


def longest_match(
    text: npt.NDArray[np.int32], token_ids: npt.NDArray[np.int32], *, between: int | None = None
) -> Match | None:
    """Find the longest match of the last tokens, of at least two, that something in the text follows.

    Of equal matches it is the latest. `between` separates parts of the text, each of which is one of its own.
    """
    if len(token_ids) < 2 or len(text) < 3:
        return None
    ends = np.flatnonzero(text[1:-1] == token_ids[-1]) + 1
    ends = ends[text[ends - 1] == token_ids[-2]]
    if between is not None:
        ends = ends[text[ends + 1] != between]
    if not len(ends):
        return None
    length, longest = 2, min(LONGEST_MATCH, len(token_ids))
    while length < longest and len(ends) > 1:
        longer = ends[ends >= length]
        longer = longer[text[longer - length] == token_ids[-1 - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    end = int(ends[-1])
    if len(ends) == 1:
        while length < longest and end >= length and text[end - length] == token_ids[-1 - length]:
            length += 1
    return Match(length, end)
