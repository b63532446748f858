import pytest

from rayinfer.outputs import Credits
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.engine_choice import (
    EXPECTED_OUTPUT_TOKENS,
    Candidate,
    EngineLoad,
    RequestCost,
    choose,
    cost_of,
    cost_of_choice,
)
from rayinfer.sampling_params import SamplingParams


def load_of(*works):
    load = EngineLoad()
    for work in works:
        load.add(work)
    return load


def candidate(name, *works, cached=0, blocks=0):
    return Candidate(name, load_of(*works), cached, blocks)


def work(num_tokens=100, prefill=0, priority=0, requests=1):
    return RequestCost(priority, requests, num_tokens, prefill)


def test_the_engine_with_the_fewest_tokens_in_flight_is_chosen():
    many_small = candidate("many small", work(50), work(50))
    one_big = candidate("one big", work(400))
    assert choose([one_big, many_small]).name == "many small"


def test_prompts_that_are_still_to_be_computed_count_more_than_answers_that_grow():
    reads = candidate("reads", work(500, prefill=400))
    writes = candidate("writes", work(900))
    assert choose([reads, writes]).name == "writes"


def test_a_cached_prefix_draws_a_request_as_far_as_it_saves_more_than_it_costs():
    assert choose([candidate("idle"), candidate("knows it", work(500), cached=60)]).name == "knows it"
    assert choose([candidate("idle"), candidate("knows it", work(500, prefill=80), cached=60)]).name == "idle"


def test_no_prefix_draws_requests_to_an_engine_with_many_more_of_them():
    popular = candidate("popular", *[work(10)] * 3, cached=100_000)
    assert choose([candidate("idle"), popular]).name == "idle"
    assert choose([candidate("busy", work(10)), popular]).name == "popular"


def test_an_uncached_prompt_goes_to_the_emptier_cache():
    assert choose([candidate("full", blocks=9), candidate("empty", blocks=2)]).name == "empty"


def test_equals_take_turns():
    candidates = [candidate(name) for name in "abc"]
    chosen = []
    for turn in range(1, 7):
        next_one = choose(candidates)
        next_one.load.last_chosen = turn
        chosen.append(next_one.name)
    assert chosen == ["a", "b", "c", "a", "b", "c"]


def test_what_is_added_is_taken_away_again():
    load = load_of(work(70, prefill=40), work(30, prefill=20))
    load.prefilled(work(70, prefill=40))
    assert (load.num_requests, load.num_tokens, load.num_prefill_tokens) == (2, 100, 20)
    load.remove(work(70, prefill=40), is_prefilled=True)
    load.remove(work(30, prefill=20), is_prefilled=False)
    assert load == EngineLoad()


@pytest.mark.parametrize(
    ("wanted", "has_credits"),
    [
        (work(100, prefill=1000), True),  # the last prompt may be longer than what is left
        (work(101), False),
        (work(requests=2), True),  # more than half of the credits counts as half of them
        (work(101, priority=-1), True),  # nothing that matters as much is there
        (work(50, requests=99, priority=-1), True),  # too large for any credits, and yet it has to go some time
        (work(1, priority=1), True),
    ],
    ids=str,
)
def test_room_is_what_the_credits_leave(wanted, has_credits):
    load = load_of(work(100, prefill=9), work(100, prefill=0))
    assert load.has_credits(wanted, Credits(num_requests=3, num_tokens=300, num_prefill_tokens=10)) is has_credits


def test_wide_work_waits_for_half_of_the_credits_and_no_longer():
    credits = Credits(num_requests=8)
    assert load_of(work(requests=4)).has_credits(work(requests=100), credits)
    assert not load_of(work(requests=5)).has_credits(work(requests=100), credits)
    assert load_of(work(requests=5)).has_credits(work(requests=3), credits)


def test_prompts_that_wait_for_their_first_token_take_the_room_until_they_have_it():
    first, credits = work(100, prefill=10), Credits(num_prefill_tokens=10)
    load = load_of(first)
    assert not load.has_credits(work(), credits)
    load.prefilled(first)
    assert load.has_credits(work(), credits)


def test_urgent_requests_pass_others_but_not_for_ever():
    credits = Credits(num_requests=2)
    load = load_of(work(priority=5), work(priority=5))
    assert not load.has_credits(work(priority=5), credits)
    for _ in range(2):
        assert load.has_credits(work(priority=0), credits)
        load.add(work(priority=0))
    assert not load.has_credits(work(priority=0), credits)
    load.add(work(priority=0))
    assert not load.has_credits(work(priority=-10), credits)


def test_without_credits_there_is_always_room():
    assert load_of(*[work(10**6, prefill=10**6)] * 1000).has_credits(work(10**6), Credits())


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(7, 7), (None, EXPECTED_OUTPUT_TOKENS), (100_000, EXPECTED_OUTPUT_TOKENS)]
)
def test_a_request_counts_its_prompt_once_and_what_each_choice_will_probably_generate(max_tokens, expected):
    params = SamplingParams(max_tokens=max_tokens, n=2)
    request = GenerationRequest(request_id="a", prompt_token_ids=[1, 2, 3], sampling_params=params, priority=4)
    assert cost_of(request) == RequestCost(4, 2, 3 + 2 * expected, 3)
    assert cost_of_choice(request, num_cached_tokens=2) == RequestCost(4, 1, 1 + expected, 1)
    assert cost_of_choice(request, num_cached_tokens=None) == RequestCost(4, 1, expected, 0)


def test_a_stream_that_goes_on_elsewhere_has_its_answer_computed_again():
    request = GenerationRequest(
        request_id="a",
        prompt_token_ids=[1, 2, 3],
        output_token_ids=[4] * 300,
        sampling_params=SamplingParams(max_tokens=400),
    )
    assert cost_of_choice(request, num_cached_tokens=0) == RequestCost(0, 1, 303, 303)


@pytest.mark.parametrize("granted", [0, 1, 2, 3])
@pytest.mark.parametrize("priorities", [(), (0,), (0, 0), (-1, 1), (1, 1, 1), (0, 0, 1, 1)])
def test_an_engine_is_full_for_a_priority_where_even_the_least_work_has_no_room(granted, priorities):
    load, credits = load_of(*(work(priority=priority) for priority in priorities)), Credits(num_requests=granted)
    for priority in (-1, 0, 1):
        assert load.is_full(priority, credits) != load.has_credits(RequestCost(priority, 1, 0, 0), credits)
