import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "n": [0, -1, 1025, 1.5, True, "2"],
        "temperature": [-0.1, 2.1, math.nan, math.inf, "hot", True, 10**400],
        "top_k": [-2, 1.5, 2**31],
        "top_p": [0.0, -0.1, 1.1, math.nan],
        "min_p": [-0.1, 1.1, math.nan],
        "typical_p": [0.0, -0.1, 1.1, math.nan, None],
        "repetition_penalty": [0.0, 1e-320, 9e-7, -1.0, 11.0, math.nan],
        "presence_penalty": [-2.1, 2.1, math.nan],
        "frequency_penalty": [-2.1, 2.1, math.inf],
        "logit_bias": [
            {-1: 1.0},
            {"5": 1.0},
            {True: 1.0},
            {2**31: 1.0},
            {5: 100.5},
            {5: -101},
            {5: math.nan},
            {5: "x"},
            dict.fromkeys(range(2**14 + 1), 1.0),
            [5],
            ["ab"],
            "5",
            7,
        ],
        "allowed_token_ids": [[], [-1], ["x"], [2**31], [True], "12", 5, {3: 1}],
        "bad_words": ["bad", [""], [3], ["x"] * 1025, ["x" * 257], 5],
        "bad_token_sequences": [[[]], [3], [[-1]], [[True]], [["x"]], [[1] * 65], [[1]] * 4097, 5, ["12"]],
        "seed": [-(2**63) - 1, 2**64, 1.0, "x", 10**5000],
        "max_tokens": [-1, 2**31, 1.0, True],
        "min_tokens": [-1, 1.0, 17],
        "stop": [[""], [3], ["x"] * 257, "", 3, {"a": 1}],
        "stop_token_ids": [[-1], ["x"], [2**31], [True], 5, "12"],
        "ignore_eos": [None, 1, "yes"],
        "include_stop_str_in_output": [None, 0],
        "skip_special_tokens": [None, "no"],
        "logprobs": [-1, 1001, 1.0, True, "2"],
        "prompt_logprobs": [-2, 1001, 1.0, False],
        "speculation": [0, 17, -1, 1.0, True, False, "4", "on", "", [], {}, ["auto"]],
    }.items(),
)
def test_a_value_out_of_range_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises(InvalidParameter, match=name) as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name
        assert isinstance(caught.value, ValueError)
        assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"logit_bias": {5: 100.5}}, r"each bias in logit_bias must lie in \[-100, 100\], got 100.5"),
        ({"logit_bias": {-3: 1.0}}, "each id in logit_bias must be an integer from 0 to 2147483647, got -3"),
        ({"bad_token_sequences": [[7, -3]]}, "each id in bad_token_sequences must be an integer from 0 to .*, got -3"),
        ({"bad_words": ["x" * 300]}, "bad_words must hold strings of at most 256 characters, got 300"),
        ({"prompt_logprobs": 1001}, "prompt_logprobs must be an integer from -1 to 1000, got 1001"),
        ({"stop": ["x"] * 257}, "stop must hold at most 256 items, got 257"),
        ({"stop": ["x", ""]}, "stop must hold non-empty strings only, got ''"),
        ({"bad_words": ["x", 5]}, "bad_words must hold non-empty strings only, got 5"),
        ({"seed": 10**5000}, "seed must be an integer from .*, got an integer of 16610 bits"),
    ],
)
def test_the_range_and_the_value_are_said(values, said):
    with pytest.raises(InvalidParameter, match=said):
        SamplingParams(**values)


@pytest.mark.parametrize(
    "rules",
    [
        {"bad_token_sequences": [[7], [3, 4], [8]]},
        {"stop_token_ids": [7, 8, 9], "min_tokens": 1},
        {"stop_token_ids": [7], "bad_token_sequences": [[8]], "min_tokens": 1},
        {"bad_token_sequences": [[7, 7], [8]]},
    ],
)
def test_settings_that_may_leave_no_token_are_refused(rules):
    with pytest.raises(InvalidParameter, match=r"must leave a token .* got \[7, 8\]") as caught:
        SamplingParams(allowed_token_ids=[7, 8], **rules)
    assert caught.value.param == "allowed_token_ids"
    SamplingParams(allowed_token_ids=[7, 8, 6], **rules)
    SamplingParams(**rules)


def test_bad_words_that_leave_no_token_are_refused_once_they_are_spelled():
    params = SamplingParams(allowed_token_ids=[7], bad_words=["x"])
    assert params.with_tokenized_bad_words(lambda word: [(7, 8)]).allowed_ids == (7,)  # no 8 can come anyway
    with pytest.raises(InvalidParameter, match="allowed_token_ids must leave a token"):
        params.with_tokenized_bad_words(lambda word: [(7,)])


def test_tokens_that_end_every_answer_of_a_model_are_not_enough_where_a_minimum_is_demanded():
    params = SamplingParams(allowed_token_ids=[2, 3], min_tokens=1)
    params.check_leaves_a_token((2,))
    with pytest.raises(InvalidParameter, match=r"allowed_token_ids must leave a token .* got \[2, 3\]"):
        params.check_leaves_a_token((2, 3))
    replace(params, min_tokens=0).check_leaves_a_token((2, 3))
    replace(params, ignore_eos=True).check_leaves_a_token((2, 3))


def test_bad_words_that_could_forbid_a_whole_vocabulary_are_refused():
    params = SamplingParams(bad_token_sequences=[[0], [1, 1], [0, 2]])
    params.check_leaves_a_token((), 4)
    with pytest.raises(InvalidParameter, match="bad_words must leave a token"):
        params.check_leaves_a_token((), 3)


def test_a_stop_token_may_be_the_only_one_where_none_is_demanded_before_it():
    SamplingParams(allowed_token_ids=[7], stop_token_ids=[7])


@pytest.mark.parametrize(
    "values",
    [
        {"n": 128, "temperature": 2.0, "top_k": -1, "top_p": 1, "min_p": 1.0},
        {"temperature": 0, "top_p": 1e-9, "repetition_penalty": 10.0, "presence_penalty": -2.0},
        {"seed": -(2**63), "max_tokens": 2**31 - 1, "min_tokens": 2**31 - 1},
        {"seed": 2**64 - 1, "max_tokens": None, "min_tokens": 500},
        {"stop": ["x"] * 16, "stop_token_ids": [0, 2**31 - 1]},
        {"typical_p": 1, "logprobs": 0, "prompt_logprobs": 20, "max_tokens": 0},
        {"logit_bias": dict.fromkeys(range(1024), -100), "allowed_token_ids": [2**31 - 1]},
        {"bad_words": ["x" * 256] * 256, "bad_token_sequences": [[0] * 64] * 1024},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(values):
    SamplingParams(**values)


def test_stops_are_kept_as_tuples_however_they_came():
    assert SamplingParams(stop="end").stop_strings == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams(stop=None, stop_token_ids=None).stop_strings == ()
    assert SamplingParams(stop_token_ids=[3, 4]).stop_ids == (3, 4)


def test_lists_are_kept_as_tuples_that_later_changes_do_not_reach():
    biases, allowed, sequences = {7: 1, 3: -2.5}, [9, 4], [[1, 2], [3]]
    params = SamplingParams(
        logit_bias=biases, allowed_token_ids=allowed, bad_token_sequences=sequences, bad_words=["x"]
    )
    biases[8], sequences[0][0] = 4.0, 9
    allowed.append(5)
    assert params.biases == ((7, 1.0), (3, -2.5))
    assert params.allowed_ids == (9, 4)
    assert params.bad_sequences == ((1, 2), (3,))
    assert params.bad_texts == ("x",)
    hash(params)


def test_lists_may_be_of_any_kind_that_holds_plain_numbers_in_order():
    assert SamplingParams(stop_token_ids=range(3)).stop_ids == (0, 1, 2)
    assert SamplingParams(allowed_token_ids=iter([4])).allowed_ids == (4,)
    assert SamplingParams(stop_token_ids=np.array([3, 4]).tolist()).stop_ids == (3, 4)
    with pytest.raises(InvalidParameter, match="each id in stop_token_ids must be an integer"):
        SamplingParams(stop_token_ids=np.array([3, 4]))
    with pytest.raises(InvalidParameter, match="stop_token_ids must be a list, got array"):
        SamplingParams(stop_token_ids=np.array(3))  # which calls itself iterable and is not


def test_no_lists_are_empty_tuples_but_no_allowed_ids_are_none():
    params = SamplingParams(logit_bias=None, bad_words=None, bad_token_sequences=None)
    assert params.biases == params.bad_texts == params.bad_sequences == ()
    assert params.allowed_ids is None
    assert SamplingParams(logit_bias={}).biases == ()


def test_what_was_kept_may_be_given_again():
    params = SamplingParams(
        n=3, logit_bias={5: 1.0}, allowed_token_ids={4}, bad_words=["x"], bad_token_sequences=[[1, 2]], stop="end"
    )
    assert replace(params, n=3) == params
    assert SamplingParams(**{field.name: getattr(params, field.name) for field in fields(params)}) == params


def test_claims_about_the_settings():
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams().is_greedy
    assert not SamplingParams().has_penalties
    for penalty in ({"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}):
        assert SamplingParams(**penalty).has_penalties
    assert not SamplingParams(logit_bias={}, bad_token_sequences=[], bad_words=["x"]).has_token_rules
    for rule in ({"logit_bias": {3: 1.0}}, {"allowed_token_ids": [3]}, {"bad_token_sequences": [[3]]}):
        assert SamplingParams(**rule).has_token_rules


def test_parameters_do_not_change_and_survive_a_pickle_round_trip():
    params = SamplingParams(seed=5, stop=["a"], stop_token_ids=[9], logit_bias={3: 1.0}, bad_token_sequences=[[1, 2]])
    with pytest.raises(FrozenInstanceError):
        params.seed = 6
    assert pickle.loads(pickle.dumps(params)) == params


def test_a_seed_is_settled_and_nothing_else_changed():
    given = {"stop": ["a"], "temperature": 0.5, "logit_bias": {3: 1.0}, "bad_words": ["x"], "max_tokens": None}
    params = SamplingParams(**given)
    assert params.with_seed(2**64 - 1) == SamplingParams(**given, seed=2**64 - 1)
    assert params.seed is None
    with pytest.raises(InvalidParameter, match="seed must be an integer"):
        params.with_seed(2**64)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", [3, 10]),
        ("logit_bias", {10: 1.0}),
        ("allowed_token_ids", [10]),
        ("bad_token_sequences", [[1], [2, 10]]),
    ],
)
def test_an_id_that_a_vocabulary_lacks_is_named(name, value):
    params = SamplingParams(**{name: value})
    params.check_vocabulary(11)
    with pytest.raises(InvalidParameter, match=f"{name} must lie in the vocabulary, 0 to 9, got 10") as refusal:
        params.check_vocabulary(10)
    assert refusal.value.param == name
