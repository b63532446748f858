import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.engine.drafting.matches import LONGEST_MATCH
from rayinfer.engine.drafting.prompt_lookup import PromptLookup, continuation


def found(token_ids, limit=4):
    return continuation(np.array(token_ids, np.int32), limit)[1]


@pytest.mark.parametrize(
    ("token_ids", "draft"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        ([7, 1, 2, 3, 8, 1, 2, 4, 9, 7, 1, 2], [3, 8, 1, 2]),  # the longest match
        ([1, 2, 3, 8, 1, 2, 4, 9, 1, 2], [4, 9, 1, 2]),  # the latest of equals
        ([1, 2, 3, 1], []),  # one token is no match
        ([1, 2, 3], []),
        ([1, 2], []),
        ([1], []),
        ([5, 5, 5], [5, 5, 5, 5]),  # a repetition goes on
        ([1, 2, 3, 1, 2, 3, 1, 2], [3, 1, 2, 3]),
    ],
)
def test_the_draft_is_what_followed_the_longest_match(token_ids, draft):
    assert found(token_ids) == draft


def test_a_match_at_the_begin_of_the_prompt_is_found():
    assert found([1, 2, 3, 4, 9, 1, 2], limit=2) == [3, 4]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 16))
def test_no_earlier_place_matches_longer_than_the_one_that_is_continued(token_ids, limit):
    length, draft = continuation(np.array(token_ids, np.int32), limit)

    def length_of(end):
        length = 0
        while length <= end and token_ids[end - length] == token_ids[-1 - length]:
            length += 1
        return min(length, LONGEST_MATCH)

    lengths = {end: length_of(end) for end in range(len(token_ids) - 1)}
    longest = max(lengths.values(), default=0)
    if longest < 2:
        assert (length, draft) == (0, [])
        return
    assert length == longest
    end = max(end for end, length in lengths.items() if length == longest)
    known = list(token_ids)
    for _ in range(limit):
        known.append(known[end + 1 + len(known) - len(token_ids)])
    assert draft == known[len(token_ids) :]


def test_rows_are_answered_in_their_order():
    rows = [
        DraftRow(row=row, request=object(), token_ids=np.array(token_ids, np.int32), prompt_len=1, limit=2)
        for row, token_ids in ((3, [1, 2, 3, 1, 2]), (0, [1, 2, 3]), (7, [4, 5, 6, 4, 5]))
    ]
    assert PromptLookup().propose(rows) == [[3, 1], [], [6, 4]]
