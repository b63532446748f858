import hashlib
import json

import pytest

from rayinfer.benchmark.load.workloads import (
    LengthRange,
    offline_workload,
    parse_length_range,
    parse_lengths,
    serving_workload,
)
from rayinfer.errors import ConfigError


def test_the_default_workload_never_changes():
    workload = offline_workload()
    content = json.dumps([workload.prompts, workload.output_lengths], separators=(",", ":")).encode()
    assert (workload.num_requests, workload.num_prompt_tokens, workload.num_output_tokens) == (64, 9453, 8946)
    assert hashlib.sha256(content).hexdigest() == "aed5358a859c04b801bbda257a401c3c3bed18d40b0e62dab0b272a11ec8f367"


def test_a_serving_workload_of_single_lengths_never_changes():
    workload = serving_workload(2, 3, 5)
    assert workload.prompts == [[25347, 27662, 2753], [17068, 33606, 31945]]
    assert workload.output_lengths == [5, 5]


def test_a_serving_workload_draws_lengths_evenly_from_ranges_by_its_seed():
    ranges = LengthRange(2, 4), LengthRange(7, 9)
    workload = serving_workload(50, *ranges, seed=3)
    assert {len(prompt) for prompt in workload.prompts} == {2, 3, 4}
    assert set(workload.output_lengths) == {7, 8, 9}
    assert workload == serving_workload(50, *ranges, seed=3)
    assert workload != serving_workload(50, *ranges, seed=4)


def test_a_range_of_one_length_is_that_length():
    assert serving_workload(2, LengthRange(3, 3), LengthRange(5, 5)) == serving_workload(2, 3, 5)
    assert [parse_lengths(text) for text in ("16:32", "16:16", "16")] == [(16, 32), 16, 16]


@pytest.mark.parametrize("text", ["", "a:b", "3:", ":", "1.5"])
def test_another_text_is_no_length(text):
    with pytest.raises(ConfigError, match="a length is a number or a range") as failure:
        parse_length_range(text)
    assert repr(text) in str(failure.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_requests": 0}, "num_requests must be at least 1, got 0"),
        ({"input_len": (5, 4)}, "5:4"),
        ({"output_len": (0, 4)}, "0:4"),
        ({"vocab_size": 100}, "vocab_size must be above 100, got 100"),
    ],
)
def test_an_impossible_workload_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        offline_workload(**arguments)
