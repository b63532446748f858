import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.tokenization.stop_strings import StopStringFinder
from support.kernels.memory_use import held_bytes

LETTERS = st.text("ab", min_size=1, max_size=5)


def first_end(text, stop_strings):
    """Say the slow way where the first stop string to be complete ends."""
    return next((end for end in range(len(text) + 1) if text[:end].endswith(tuple(stop_strings))), None)


def longest_beginning(text, stop_strings):
    """Say the slow way how much of the text's end may begin a stop string."""
    beginnings = {stop[:length] for stop in stop_strings for length in range(1, len(stop))}
    return max((len(start) for start in beginnings if text.endswith(start)), default=0)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(LETTERS, max_size=8), st.lists(LETTERS, min_size=1, max_size=3))
def test_it_finds_the_first_and_longest_match_and_holds_the_longest_beginning(pieces, stop_strings):
    finder, text = StopStringFinder(stop_strings), ""
    for piece in pieces:
        match = finder.scan(piece)
        end = first_end(text + piece, stop_strings)
        assert (match is None) == (end is None)
        if match is not None:
            ending = [stop for stop in stop_strings if (text + piece)[:end].endswith(stop)]
            assert match == (max(ending, key=len), end - len(text))
            return
        text += piece
        assert finder.num_held == longest_beginning(text, stop_strings)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(LETTERS, LETTERS, LETTERS, st.lists(LETTERS, min_size=1, max_size=3))
def test_after_a_restart_it_knows_only_the_text_it_was_given(forgotten, text, more, stop_strings):
    finder, fresh = StopStringFinder(stop_strings), StopStringFinder(stop_strings)
    finder.scan(forgotten, is_looking=False)
    finder.restart(text)
    fresh.scan(text, is_looking=False)
    assert finder.num_held == fresh.num_held
    assert finder.scan(more) == fresh.scan(more)


def test_a_match_that_is_passed_over_can_still_begin_the_next_one():
    finder = StopStringFinder(["aba"])
    assert finder.scan("aba", is_looking=False) is None
    assert finder.num_held == 1
    assert finder.scan("ba") == ("aba", 2)


@pytest.mark.parametrize("length", [10, 100_000])
def test_a_long_stop_string_costs_nothing_for_the_part_that_never_matches(length):
    finder = StopStringFinder(["a" * length])
    finder.scan("aab")
    assert finder.num_held == 0
    assert held_bytes(finder) - length < 3000
