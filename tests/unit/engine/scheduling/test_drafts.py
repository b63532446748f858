"""Drafts in the batch: what is planned, what acceptance moves, and what they may not take from others."""

import pytest

from rayinfer.engine.drafting.prompt_lookup import PromptLookup
from rayinfer.engine.drafting.recent_answers import RecentAnswers
from rayinfer.errors import EngineDead
from rayinfer.protocols import Pause, Resume
from support.fakes.fake_executor import EOS, INVALID, drive, expected_tokens, mixed_answer, numbers


class Guesses:
    """A drafter whose drafts are the next `num_right` tokens and then `wrong`."""

    def __init__(self, num_right, wrong=(), answer=mixed_answer):
        self.num_right, self.wrong, self.answer = num_right, list(wrong), answer
        self.asked = []

    def propose(self, rows):
        self.asked.append([(each.row, each.limit) for each in rows])
        return [[*expected_tokens(each.token_ids.tolist(), self.num_right, self.answer), *self.wrong] for each in rows]


def last_counts(driven):
    """Return the tokens of each request in the latest plan."""
    plan = driven.executor.plans[-1]
    return (plan.cu_seqlens_q[1:] - plan.cu_seqlens_q[:-1]).tolist()


def test_accepted_drafts_save_their_steps():
    driven = drive(drafter=Guesses(3), speculation=3)
    driven.add("a", numbers(6), max_tokens=13)
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(6), 13)
    assert len(driven.executor.plans) == 1 + 3  # a prompt, and four tokens a step
    assert driven.executor.num_tokens_computed == 6 + 12  # nothing twice
    stats = driven.engine.stats
    assert (stats.num_drafts_total, stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (3, 9, 9)
    assert stats.generation_tokens_total == 13


def test_a_rejected_draft_ends_the_accepted_ones():
    driven = drive(drafter=Guesses(2, wrong=[1, 1]), speculation=4)
    driven.add("a", numbers(6), max_tokens=10)
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(6), 10)
    stats = driven.engine.stats
    assert (stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (4 + 4 + 2, 6)


def test_an_engine_or_a_request_that_is_off_has_no_drafts():
    guesses = Guesses(3)
    driven = drive(drafter=guesses, speculation="off")
    driven.add("a", numbers(6), max_tokens=9)
    driven.run()
    assert not guesses.asked
    driven = drive(drafter=guesses, speculation="auto")
    driven.add("off", numbers(6), max_tokens=9, speculation="off")
    driven.add("on", numbers(6, 4), max_tokens=9, speculation=2)
    driven.run()
    assert all(limit <= 2 for asked in guesses.asked for _, limit in asked)
    assert all(len(asked) == 1 for asked in guesses.asked)


def test_drafts_end_before_the_longest_answer_and_before_end_tokens():
    guesses = Guesses(1, wrong=[5, EOS, 6])
    driven = drive(drafter=guesses, speculation=8)
    driven.add("a", numbers(6), max_tokens=4)
    driven.step()
    driven.step()
    assert last_counts(driven) == [1 + 2]  # one right token, and the wrong one before EOS
    driven.step()
    assert last_counts(driven) == [1]  # one token is missing, which no draft saves
    assert driven.reasons() == {"a": "length"}
    driven.add("b", numbers(6, 4), max_tokens=9, ignore_eos=True, stop_token_ids=[6])
    driven.step()
    driven.step()
    assert last_counts(driven) == [1 + 3]  # EOS may be drafted where it ends nothing


def test_an_end_token_behind_accepted_drafts_ends_the_request():
    def answer(context):
        return EOS if len(context) == 10 else mixed_answer(context)

    driven = drive(drafter=Guesses(6, answer=answer), speculation=6, answer=answer)
    driven.add("a", numbers(6), max_tokens=20)
    driven.run()
    assert driven.tokens["a"] == [*expected_tokens(numbers(6), 4), EOS]
    assert driven.reasons() == {"a": "stop"}
    assert len(driven.executor.plans) == 2


def test_drafts_take_only_what_the_step_has_left():
    driven = drive(drafter=Guesses(5), speculation=5, budget=8)
    driven.add("a", numbers(4), max_tokens=9)
    driven.step()
    driven.add("b", numbers(6, 4), max_tokens=1)
    driven.step()
    assert last_counts(driven) == [1 + 1, 6]
    driven.add("c", numbers(20, 5), max_tokens=1)
    driven.step()
    assert last_counts(driven) == [1, 7]


def test_drafts_take_no_block_that_a_request_may_need():
    driven = drive(drafter=Guesses(5), speculation=5, num_blocks=12, block_size=4)
    for start in range(3):
        driven.add(f"r{start}", numbers(7, start), max_tokens=9)
    driven.run()  # four blocks each fill the pool
    assert driven.engine.stats.num_preemptions_total == 0
    assert all(driven.tokens[f"r{start}"] == expected_tokens(numbers(7, start), 9) for start in range(3))


def test_drafts_are_cut_at_the_last_slot_where_blocks_are_short():
    driven = drive(drafter=Guesses(8), speculation=8, num_blocks=3, block_size=4)
    driven.add("a", numbers(5), max_tokens=7)
    driven.step()
    driven.step()
    assert last_counts(driven) == [1 + 2]  # six tokens are known, and two blocks have eight slots
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(5), 7)


def test_a_preempted_request_with_drafts_ends_like_any_other():
    driven = drive(drafter=Guesses(2, wrong=[1]), speculation=4, num_blocks=8, block_size=4, num_offload_blocks=8)
    for start in range(3):
        driven.add(f"r{start}", numbers(9, start), max_tokens=14)
    driven.run()
    assert driven.engine.stats.num_preemptions_total > 0
    assert all(driven.tokens[f"r{start}"] == expected_tokens(numbers(9, start), 14) for start in range(3))


def test_blocks_behind_accepted_drafts_are_stored_and_hit():
    driven = drive(drafter=Guesses(5), speculation=5, block_size=4)
    driven.add("a", numbers(6), max_tokens=12)
    driven.run()
    answer = expected_tokens(numbers(6), 12)
    driven.add("b", [*numbers(6), *answer], max_tokens=3)
    driven.run()
    assert driven.tokens["b"] == expected_tokens([*numbers(6), *answer], 3)
    assert driven.ends["b"].num_cached_tokens == 16  # of 18, the last of which was never an input


def test_a_failed_step_is_computed_again_without_drafts():
    def failure(context):
        return RuntimeError("too much") if len(context) == 10 else None

    driven = drive(drafter=Guesses(5), speculation=5, failure=failure)
    driven.add("a", numbers(7), max_tokens=9)
    driven.run()
    assert driven.reasons() == {"a": "error"}
    assert driven.tokens["a"] == expected_tokens(numbers(7), 3)  # as far as it would get without drafts


def test_drafts_of_a_failed_step_keep_no_window_pages():
    failures = [RuntimeError("once")]

    def failure(context):
        return failures.pop() if failures and len(context) == 8 else None

    driven = drive(drafter=Guesses(6), speculation=6, failure=failure, block_size=4, window=4)
    driven.add("a", numbers(6), max_tokens=14)
    driven.step()
    driven.step()  # it fails with six drafts, and is computed again without
    assert len(driven.executor.plans) == 3
    assert len(driven.scheduler.window_pages_in_use) == 1  # of tokens 4 to 7; drafts had one more
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(6), 14)


def test_logits_that_are_not_finite_behind_accepted_drafts_end_the_request_there():
    def answer(context):
        return INVALID if len(context) == 10 else mixed_answer(context)

    driven = drive(drafter=Guesses(5), speculation=5, answer=answer)
    driven.add("a", numbers(7), max_tokens=9, logprobs=0)
    driven.run()
    assert driven.reasons() == {"a": "error"}
    assert driven.tokens["a"] == expected_tokens(numbers(7), 3)
    assert len(driven.logprobs["a"]) == 3


def test_a_row_that_others_used_before_has_its_own_drafts():
    driven = drive(drafter=Guesses(2, wrong=[1]), speculation="auto", max_num_seqs=1)
    for start in range(4):
        driven.add(f"r{start}", numbers(5, start), max_tokens=8)
    driven.run()
    assert all(driven.tokens[f"r{start}"] == expected_tokens(numbers(5, start), 8) for start in range(4))


def test_a_paused_engine_goes_on_with_new_drafts():
    driven = drive(drafter=Guesses(2, wrong=[1]), speculation=3)
    driven.add("a", numbers(5), max_tokens=12)
    for _ in range(3):
        driven.step()
        driven.engine.control(Pause())
        assert driven.step() == []
        driven.engine.control(Resume())
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(5), 12)


def test_an_interrupted_step_leaves_no_drafts_behind():
    driven = drive(drafter=Guesses(3), speculation=3, failure=lambda context: interruption(context))
    interruptions = [KeyboardInterrupt()]

    def interruption(context):
        return interruptions.pop() if interruptions and len(context) == 8 else None

    driven.add("a", numbers(6), max_tokens=9)
    with pytest.raises(KeyboardInterrupt):
        driven.run()
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(6), 9)


def test_an_engine_that_dies_with_drafts_in_a_step_says_so():
    driven = drive(drafter=Guesses(3), speculation=3)
    driven.add("a", numbers(6), max_tokens=9)
    driven.step()
    driven.executor.failure = lambda context: EngineDead("gone")
    with pytest.raises(EngineDead):
        driven.step()


def drive_with_memory(**settings):
    recent = RecentAnswers(1 << 20)
    return recent, drive(drafter=PromptLookup(recent), recent_answers=recent, **settings)


def test_an_answer_that_a_tenant_got_before_is_drafted_for_it_alone():
    recent, driven = drive_with_memory(speculation=4)
    ask = {"max_tokens": 13, "tenant": "a"}
    driven.add("first", numbers(6), **ask)
    driven.run()
    assert driven.engine.stats.accepted_draft_tokens_total == 0
    others = [{"tenant": "b"}, {"cache_salt": "b"}, {"adapter": "b"}]
    for number, other in enumerate(others):
        driven.add(f"other{number}", numbers(6), **ask | other)
        driven.run()
    assert driven.engine.stats.num_drafts_total == 0
    driven.add("again", numbers(6), **ask)
    driven.run()
    assert driven.tokens["again"] == driven.tokens["first"] == expected_tokens(numbers(6), 13)
    assert driven.engine.stats.accepted_draft_tokens_total == 9  # all but the first token and those behind drafts
    driven.scheduler.drop_computed()
    assert recent.num_bytes == 0


def test_answers_that_do_not_draft_or_failed_are_not_kept():
    recent, driven = drive_with_memory(speculation="off")
    driven.add("a", numbers(6))
    driven.run()
    assert recent.num_bytes == 0
    driven.add("b", numbers(6), speculation="auto")
    driven.run()
    assert recent.num_bytes > 0
    recent, driven = drive_with_memory(answer=lambda context: INVALID if len(context) == 9 else mixed_answer(context))
    driven.add("a", numbers(6), max_tokens=9)
    driven.run()
    assert driven.reasons() == {"a": "error"}
    assert recent.num_bytes == 0


def test_a_trace_says_what_became_of_the_drafts():
    driven = drive(drafter=Guesses(2, wrong=[1]), speculation=4, num_blocks=8, block_size=4, num_offload_blocks=8)
    for start in range(3):
        driven.add(f"r{start}", numbers(9, start), max_tokens=14, trace=True)
    driven.run()
    stats = driven.engine.stats
    assert stats.num_preemptions_total > 0
    events = [event for end in driven.ends.values() for event in end.trace if event.name == "speculated"]
    assert len(events) == 3
    drafted, accepted = (sum(event.details[name] for event in events) for name in ("draft_tokens", "accepted_tokens"))
    assert (drafted, accepted) == (stats.draft_tokens_total, stats.accepted_draft_tokens_total)
    driven.add("off", numbers(9), speculation="off", trace=True)
    driven.run()
    assert "speculated" not in [event.name for event in driven.ends["off"].trace]
