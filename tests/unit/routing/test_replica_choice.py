import pytest

from rayinfer.protocols import GenerationRequest
from rayinfer.routing.replica_choice import EXPECTED_OUTPUT_TOKENS, EngineLoad, expected_tokens, least_loaded
from rayinfer.sampling_params import SamplingParams


def test_the_engine_with_the_fewest_tokens_in_flight_is_chosen():
    many_small = EngineLoad(name="many small", num_requests=5, num_tokens=50)
    one_big = EngineLoad(name="one big", num_requests=1, num_tokens=400)
    assert least_loaded([one_big, many_small]) is many_small


def test_with_equal_tokens_the_fewer_requests_decide():
    two, one = (EngineLoad(name=str(count), num_requests=count, num_tokens=64) for count in (2, 1))
    assert least_loaded([two, one]) is one


def test_equals_take_turns():
    loads = [EngineLoad(name=name) for name in "abc"]
    chosen = []
    for turn in range(1, 7):
        load = least_loaded(loads)
        load.last_chosen = turn
        chosen.append(load.name)
    assert chosen == ["a", "b", "c", "a", "b", "c"]


def test_what_is_added_is_taken_away_again():
    load = EngineLoad(name="a")
    load.add(70)
    load.add(30)
    load.remove(70)
    assert (load.num_requests, load.num_tokens) == (1, 30)


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(7, 10), (None, 3 + EXPECTED_OUTPUT_TOKENS), (100_000, 3 + EXPECTED_OUTPUT_TOKENS)]
)
def test_a_request_counts_its_prompt_and_what_it_will_probably_generate(max_tokens, expected):
    params = SamplingParams(max_tokens=max_tokens)
    request = GenerationRequest(request_id="a", prompt_token_ids=[1, 2, 3], sampling_params=params)
    assert expected_tokens(request) == expected
