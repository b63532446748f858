"""Blocks of a request that ended without finite logits: no request hits them afterwards."""

import math
import random

import pytest

from support.fakes.fake_executor import drive, expected_tokens, numbers

PROMPT = numbers(21)
OVERLAPS = pytest.mark.parametrize("supports_async_scheduling", [False, True])


def spoilt_once(driven, at):
    """Spoil the first step whose context has a given length, and no other."""
    seen = []

    def spoils(context):
        if len(context) != at or seen:
            return False
        seen.append(context)
        return True

    driven.executor.spoils = spoils
    return driven


def check(driven, name, prompt, num_tokens=4):
    assert driven.ends[name].finish_reason == "length"
    assert driven.tokens[name] == expected_tokens(prompt, num_tokens)


@OVERLAPS
@pytest.mark.parametrize("chunk", [8, 16])
def test_chunks_stored_before_the_end_is_known_are_computed_again(chunk, supports_async_scheduling):
    driven = spoilt_once(drive(budget=8, supports_async_scheduling=supports_async_scheduling), chunk)
    driven.add("bad", PROMPT)
    driven.run()
    assert driven.reasons() == {"bad": "error"}
    for i in range(3):
        driven.add(f"later {i}", [*PROMPT[:20], 5 + i])
        driven.run()
        check(driven, f"later {i}", [*PROMPT[:20], 5 + i])
    assert [driven.ends[f"later {i}"].num_cached_tokens for i in range(3)] == [0, 20, 20]


def test_the_router_learns_of_removed_blocks():
    driven = spoilt_once(drive(budget=8), 16)
    driven.add("bad", PROMPT)
    driven.step()
    driven.step()
    stored, _ = driven.engine.take_block_events()
    assert stored
    driven.run()
    _, removed = driven.engine.take_block_events()
    assert set(removed) == set(stored)


@OVERLAPS
def test_blocks_that_it_had_only_hit_stay(supports_async_scheduling):
    driven = drive(budget=64, supports_async_scheduling=supports_async_scheduling)
    driven.add("first", PROMPT[:9])
    driven.run()
    spoilt_once(driven, 21)
    driven.add("bad", PROMPT)
    driven.run()
    driven.add("later", PROMPT)
    driven.run()
    assert driven.reasons()["bad"] == "error"
    assert driven.ends["later"].num_cached_tokens == 8
    check(driven, "later", PROMPT)


@OVERLAPS
def test_requests_that_wait_for_its_blocks_do_not_take_them(supports_async_scheduling):
    driven = spoilt_once(drive(budget=8, supports_async_scheduling=supports_async_scheduling), 8)
    driven.add("bad", PROMPT)
    driven.add("waits", [*PROMPT, 7])
    driven.run()
    assert driven.reasons() == {"bad": "error", "waits": "length"}
    check(driven, "waits", [*PROMPT, 7])


@OVERLAPS
def test_a_request_that_shares_its_blocks_stores_nothing_on_top_of_them(supports_async_scheduling):
    driven = spoilt_once(drive(budget=8, supports_async_scheduling=supports_async_scheduling), 8)
    driven.add("bad", PROMPT, max_tokens=1)
    driven.step()
    driven.step()
    driven.add("shares", [*PROMPT[:8], *numbers(30, 50)], priority=-1)
    driven.run()
    assert driven.reasons() == {"bad": "error", "shares": "error"}
    for name, prompt in (("later", PROMPT), ("too", [*PROMPT[:8], *numbers(30, 50)])):
        driven.add(name, prompt)
        driven.run()
        check(driven, name, prompt)


def test_copies_of_its_blocks_in_the_second_pool_are_forgotten_too():
    driven = spoilt_once(drive(num_blocks=12, budget=16, num_offload_blocks=32), 16)
    driven.add("bad", numbers(30), max_tokens=4, priority=1)
    driven.step()
    driven.add("urgent", numbers(33, 60), max_tokens=3)
    driven.run()
    assert driven.engine.stats.num_preemptions_total
    assert driven.executor.copies
    assert driven.reasons() == {"bad": "error", "urgent": "length"}
    driven.add("twin", numbers(30), max_tokens=4, priority=1)
    driven.step()
    driven.add("urgent too", numbers(33, 61), max_tokens=3)
    driven.run()
    check(driven, "twin", numbers(30))


def test_a_swapped_out_request_does_not_return_to_blocks_that_turned_out_invalid():
    driven = spoilt_once(drive(num_blocks=20, budget=8, num_offload_blocks=32), 8)
    driven.add("bad", numbers(40), max_tokens=4)
    driven.step()
    driven.step()
    driven.add("shares", [*numbers(40)[:8], *numbers(30, 50)], max_tokens=4, priority=1)
    driven.run()
    assert driven.reasons()["bad"] == "error"
    driven.add("later", numbers(40))
    driven.run()
    check(driven, "later", numbers(40))


def drive_with_a_sharer(**sizes):
    """Drive until a request that shares spoilt blocks prefills, one step before they turn out to be invalid."""
    driven = spoilt_once(drive(budget=16, **sizes), 16)
    driven.add("bad", PROMPT)
    driven.step()
    driven.add("shares", [*PROMPT[:16], *numbers(40, 50)], priority=1)
    return driven


def test_a_request_that_shares_its_blocks_is_not_swapped_out_but_computed_again():
    driven = drive_with_a_sharer(num_blocks=20, num_offload_blocks=32)
    driven.step()
    assert driven.reasons() == {"bad": "error"}
    driven.add("urgent", numbers(60, 30))
    driven.run()
    assert driven.engine.stats.num_preemptions_total == 1
    check(driven, "shares", [*PROMPT[:16], *numbers(40, 50)])


@OVERLAPS
def test_chunks_of_an_aborted_request_fail_one_later_request_at_most(supports_async_scheduling):
    driven = spoilt_once(drive(budget=8, supports_async_scheduling=supports_async_scheduling), 8)
    driven.add("aborted", PROMPT)
    driven.step()
    driven.step()
    driven.abort("aborted")
    for name in ("first", "second"):
        driven.add(name, PROMPT)
        driven.run()
    assert driven.reasons()["first"] == "error"
    check(driven, "second", PROMPT)


@OVERLAPS
def test_sampled_chunks_outlive_a_request_that_fails_later(supports_async_scheduling):
    driven = drive(budget=8, supports_async_scheduling=supports_async_scheduling)
    driven.add("sound", PROMPT)
    driven.run()
    for i, at in enumerate((24, 21)):
        spoilt_once(driven, at)
        driven.add(f"bad {i}", [*PROMPT[:20], *numbers(4 - 3 * i, 70)])
        driven.run()
        assert driven.reasons()[f"bad {i}"] == "error"
        assert driven.ends[f"bad {i}"].num_cached_tokens == 20


def test_valid_blocks_behind_an_invalid_one_do_not_hide_it():
    driven = drive(budget=8)
    prompt, answer = PROMPT[:8], expected_tokens(PROMPT[:8], 13)
    spoilt_once(driven, 15)
    driven.add("answered", prompt, max_tokens=13)
    driven.step()
    driven.add("aborted", [*prompt, *answer[:8]])  # writes what the other one is about to write as its answer
    driven.step()
    driven.abort("aborted")
    driven.run()
    check(driven, "answered", prompt, 13)
    for name in ("first", "second"):
        driven.add(name, [*prompt, *answer])
        driven.run()
    assert driven.reasons()["first"] == "error"
    check(driven, "second", [*prompt, *answer])


@OVERLAPS
def test_a_prompt_that_is_only_scored_ends_in_error_where_its_scores_are_no_numbers(supports_async_scheduling):
    driven = spoilt_once(drive(budget=8, supports_async_scheduling=supports_async_scheduling), 8)
    driven.add("bad", PROMPT, max_tokens=0, prompt_logprobs=1)
    driven.run()
    assert driven.reasons() == {"bad": "error"}
    assert "bad" not in driven.prompt_logprobs
    driven.add("later", PROMPT, max_tokens=0, prompt_logprobs=1)
    driven.run()
    assert driven.reasons()["later"] == "length"
    assert not any(math.isnan(each.logprob) for place in driven.prompt_logprobs["later"][1:] for each in place.values())


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("seed", [*range(40), 109, 358, 384, 422, 431, 542])
def test_whichever_steps_are_spoilt_later_requests_get_their_answers(seed, aborts):
    chance = random.Random(seed)
    driven = drive(
        num_blocks=chance.choice([12, 16, 24, 40]),
        budget=chance.choice([8, 16, 64]),
        num_offload_blocks=chance.choice([0, 16, 32]),
        supports_async_scheduling=(supports_async_scheduling := chance.random() < 0.5),
        max_concurrent_batches=1 if supports_async_scheduling else chance.choice([1, 2]),
    )
    is_over = False
    driven.executor.spoils = lambda context: not is_over and chance.random() < 0.08
    heads = [numbers(chance.randint(4, 24), start) for start in (0, 40)]
    prompts = {str(i): [*chance.choice(heads), *numbers(chance.randint(1, 12), i)] for i in range(10)}
    num_aborts = 0
    for name, prompt in prompts.items():
        driven.add(name, prompt, max_tokens=chance.randint(1, 12), priority=chance.randint(-1, 1))
        for _ in range(chance.randint(0, 3)):
            driven.step()
        if aborts and chance.random() < 0.4:
            num_aborts += driven.engine.abort(chance.choice(list(prompts))) is not None
    driven.run()
    is_over = True
    for name, prompt in prompts.items():
        driven.add(f"later {name}", prompt)
        driven.run()
    failed = [name for name in prompts if driven.ends[f"later {name}"].finish_reason == "error"]
    assert len(failed) <= num_aborts  # what an aborted request has written is known once another samples from it
    for name, prompt in prompts.items():
        driven.add(f"again {name}", prompt)
        driven.run()
        check(driven, f"again {name}", prompt)
