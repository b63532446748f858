import math
import pickle
from dataclasses import FrozenInstanceError

import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "n": [0, -1, 129, 1.5, True, "2"],
        "temperature": [-0.1, 2.1, math.nan, math.inf, "hot", True],
        "top_k": [-2, 1.5, 2**31],
        "top_p": [0.0, -0.1, 1.1, math.nan],
        "min_p": [-0.1, 1.1, math.nan],
        "repetition_penalty": [0.0, -1.0, 11.0, math.nan],
        "presence_penalty": [-2.1, 2.1, math.nan],
        "frequency_penalty": [-2.1, 2.1, math.inf],
        "seed": [-(2**63) - 1, 2**64, 1.0, "x"],
        "max_tokens": [0, -1, 2**31, 1.0, True],
        "min_tokens": [-1, 1.0, 17],
        "stop": [[""], [3], ["x"] * 17, ""],
        "stop_token_ids": [[-1], ["x"], [2**31], [True]],
    }.items(),
)
def test_a_value_out_of_range_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises(InvalidParameter, match=name) as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "values",
    [
        {"n": 128, "temperature": 2.0, "top_k": -1, "top_p": 1, "min_p": 1.0},
        {"temperature": 0, "top_p": 1e-9, "repetition_penalty": 10.0, "presence_penalty": -2.0},
        {"seed": -(2**63), "max_tokens": 2**31 - 1, "min_tokens": 2**31 - 1},
        {"seed": 2**64 - 1, "max_tokens": None, "min_tokens": 500},
        {"stop": ["x"] * 16, "stop_token_ids": [0, 2**31 - 1]},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(values):
    SamplingParams(**values)


def test_stops_are_kept_as_tuples_however_they_came():
    assert SamplingParams(stop="end").stop_strings == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams(stop=None, stop_token_ids=None).stop_strings == ()
    assert SamplingParams(stop_token_ids=[3, 4]).stop_ids == (3, 4)


def test_claims_about_the_settings():
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams().is_greedy
    assert not SamplingParams().has_penalties
    for penalty in ({"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}):
        assert SamplingParams(**penalty).has_penalties


def test_parameters_do_not_change_and_survive_a_pickle_round_trip():
    params = SamplingParams(seed=5, stop=["a"], stop_token_ids=[9])
    with pytest.raises(FrozenInstanceError):
        params.seed = 6
    assert pickle.loads(pickle.dumps(params)) == params
