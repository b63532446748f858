import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.engine.drafting.matches import LONGEST_MATCH
from rayinfer.engine.drafting.prompt_lookup import PromptLookup
from rayinfer.engine.drafting.recent_answers import SHORTEST_MATCH, RecentAnswers


def tokens(*token_ids):
    return np.array(token_ids, np.int32)


def remembering(*answers, salt=b"a", max_bytes=1 << 20):
    recent = RecentAnswers(max_bytes)
    for answer in answers:
        recent.add(salt, tokens(*answer), 0)
    return recent


def test_what_followed_the_longest_match_is_found():
    recent = remembering([1, 2, 3, 4, 5], [9, 1, 2, 3, 6, 7, 8])
    assert recent.find(b"a", tokens(5, 1, 2, 3), 2) == (3, [6, 7])  # the latest of equals
    assert recent.find(b"a", tokens(8, 9, 1, 2, 3), 9) == (4, [6, 7, 8])  # not beyond the answer
    assert recent.find(b"a", tokens(0, 1, 2), 2) == (0, [])  # too short
    assert recent.find(b"a", tokens(3, 4, 5), 2) == (0, [])  # nothing followed
    assert recent.find(b"a", tokens(5, 9, 1), 2) == (0, [])  # not over the border of two answers


def test_nothing_is_found_across_salts():
    recent = remembering([1, 2, 3, 4, 5])
    assert recent.find(b"b", tokens(1, 2, 3), 2) == (0, [])
    recent.add(b"b", tokens(1, 2, 3, 7), 0)
    assert recent.find(b"a", tokens(1, 2, 3), 2) == (3, [4, 5])
    assert recent.find(b"b", tokens(1, 2, 3), 2) == (3, [7])


def test_the_first_tokens_are_found_behind_the_end_of_the_prompt():
    recent = RecentAnswers(1 << 20)
    prompt = list(range(100))
    recent.add(b"a", tokens(*prompt, 500, 501), 100)
    assert recent.find(b"a", tokens(7, 97, 98, 99), 4) == (3, [500, 501])
    assert recent.find(b"a", tokens(1, 2, 3, 4, 5), 4) == (0, [])  # the rest of the prompt is not kept
    recent.forget()
    recent.add(b"a", tokens(*prompt), 100)  # no answer
    assert recent.num_bytes == 0


def test_the_least_recently_used_is_forgotten():
    def answer(number):
        return [number, number + 1, number + 2, *range(100)]

    one = remembering(answer(1000)).num_bytes
    recent = remembering(answer(1000), answer(2000), answer(3000), max_bytes=3 * one)
    assert recent.num_bytes == 3 * one
    assert recent.find(b"a", tokens(1000, 1001, 1002), 1)[0] == 3  # used
    recent.add(b"a", tokens(*answer(2000)), 0)  # again
    recent.add(b"b", tokens(*answer(4000)), 0)
    assert recent.num_bytes == 3 * one
    assert recent.find(b"a", tokens(3000, 3001, 3002), 1) == (0, [])
    assert recent.find(b"a", tokens(1000, 1001, 1002), 1)[0] == 3
    assert recent.find(b"a", tokens(2000, 2001, 2002), 1)[0] == 3
    assert recent.find(b"b", tokens(4000, 4001, 4002), 1)[0] == 3
    recent.add(b"a", tokens(*range(10_000)), 0)  # larger than all memory
    assert recent.num_bytes == 3 * one
    recent.forget()
    assert recent.num_bytes == 0
    assert recent.find(b"a", tokens(1000, 1001, 1002), 1) == (0, [])


def test_memory_stays_within_the_bound():
    limit = 1 << 19
    recent = RecentAnswers(limit)
    tracemalloc.start()
    try:
        for number in range(3000):
            salt = b"salt" * (number % 50)
            recent.add(salt, np.arange(number, number + 20 + number % 200, dtype=np.int32), 0)
            recent.find(salt, tokens(number, number + 1, number + 2), 4)
            assert recent.num_bytes <= limit
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert recent.num_bytes > limit * 0.99
    assert used < 1.1 * limit


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b"]), st.lists(st.integers(0, 3), min_size=1, max_size=12)), max_size=12
    )
)
def test_searches_agree_with_a_plain_one(added):
    recent, plain = RecentAnswers(1 << 20), {b"a": [], b"b": []}
    for salt, answer in added:
        recent.add(salt, tokens(*answer), 0)
        if answer not in plain[salt]:
            plain[salt].append(answer)
    for salt, last in (*added, (b"a", [0, 1, 2, 3])):
        matches = [
            length
            for answer in plain[salt]
            for end in range(len(answer) - 1)
            if (length := common_suffix(answer[: end + 1], last)) >= SHORTEST_MATCH
        ]
        length, draft = recent.find(salt, tokens(*last), 3)
        assert length == max(matches, default=0)
        if length:
            continued = [*last[-length:], *draft]
            assert any(contains(answer, continued) for answer in plain[salt])


def common_suffix(text, other):
    length = 0
    while length < min(len(text), len(other), LONGEST_MATCH) and text[-1 - length] == other[-1 - length]:
        length += 1
    return length


def contains(text, part):
    return any(text[i : i + len(part)] == part for i in range(len(text)))


def test_a_longer_match_elsewhere_goes_before_one_in_the_request():
    lookup = PromptLookup(remembering([1, 2, 3, 4, 5]))

    def draft(*token_ids, salt=b"a"):
        row = DraftRow(row=0, request=object(), token_ids=tokens(*token_ids), prompt_len=1, limit=2, salt=salt)
        return lookup.propose([row])[0]

    assert draft(0, 2, 3, 7, 8, 1, 2, 3) == [4, 5]  # 1 2 3 there, 2 3 here
    assert draft(0, 2, 3, 7, 8, 1, 2, 3, salt=b"b") == [7, 8]
    assert draft(1, 2, 3, 7, 8, 1, 2, 3) == [7, 8]  # its own, of equals
    assert draft(9, 1, 2, 3) == [4, 5]
