"""Engine: rejected requests, deadlines, and the requests that a failing step ends."""

import pytest

from rayinfer.errors import InvalidParameter, PromptTooLong, RequestError
from support.fakes.fake_executor import VOCAB_SIZE, drive, expected_tokens, numbers

# Refusals


@pytest.mark.parametrize(
    ("request_fields", "error", "message", "param"),
    [
        ({"prompt": []}, InvalidParameter, "empty", "prompt"),
        ({"prompt": numbers(128)}, PromptTooLong, "128 tokens", "prompt"),
        ({"prompt": numbers(120), "outputs": numbers(8), "max_tokens": 20}, PromptTooLong, "128", "prompt"),
        ({"prompt": numbers(129), "max_tokens": 0}, PromptTooLong, "129 tokens", "prompt"),
        ({"prompt": [5, VOCAB_SIZE]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
        ({"prompt": [-1]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
        ({"prompt": [5], "outputs": [VOCAB_SIZE]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
        ({"prompt": [None]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
        ({"prompt": [[5]]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
        ({"prompt": [2**40]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
        ({"prompt": [5], "n": 2}, InvalidParameter, "got 2", "n"),
        ({"prompt": [5], "outputs": [6, 7], "max_tokens": 2}, InvalidParameter, "max_tokens is 2", "max_tokens"),
        ({"prompt": [5], "stop_token_ids": [VOCAB_SIZE]}, InvalidParameter, "97", "stop_token_ids"),
        ({"prompt": [5], "logit_bias": {VOCAB_SIZE: 1.0}}, InvalidParameter, "0 to 96, got 97", "logit_bias"),
        ({"prompt": [5], "allowed_token_ids": [3, VOCAB_SIZE]}, InvalidParameter, "got 97", "allowed_token_ids"),
        ({"prompt": [5], "bad_token_sequences": [[3, VOCAB_SIZE]]}, InvalidParameter, "97", "bad_token_sequences"),
        ({"prompt": [5], "bad_words": ["unspelled"]}, InvalidParameter, "must be tokenized", "bad_words"),
        ({"prompt": [5], "priority": 11}, InvalidParameter, "got 11", "priority"),
        ({"prompt": [5], "priority": "high"}, InvalidParameter, "'high'", "priority"),
        ({"prompt": [5], "timeout_s": float("nan")}, InvalidParameter, "nan", "timeout_s"),
        ({"prompt": [5], "timeout_s": "soon"}, InvalidParameter, "'soon'", "timeout_s"),
        ({"prompt": ["five"]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
        ({"prompt": [5.5]}, InvalidParameter, f"0 to {VOCAB_SIZE - 1}", "prompt"),
    ],
)
def test_a_request_that_could_never_finish_is_refused_alone(request_fields, error, message, param):
    driven = drive()
    driven.add("good", numbers(9))
    with pytest.raises(error, match=message) as caught:
        driven.add("bad", **request_fields)
    assert caught.value.param == param
    assert driven.engine.num_unfinished_requests == 1
    driven.run()
    assert driven.tokens["good"] == expected_tokens(numbers(9), 4)


def test_the_refusal_of_a_long_prompt_has_the_clients_word_for_it():
    with pytest.raises(PromptTooLong) as caught:
        drive().add("long", numbers(500))
    assert caught.value.code == "context_length_exceeded"


def test_an_id_in_use_is_refused_and_free_again_afterwards():
    driven = drive()
    driven.add("a", numbers(5))
    with pytest.raises(RequestError, match="'a' is in use"):
        driven.add("a", numbers(6))
    driven.run()
    driven.ends.clear()
    driven.add("a", numbers(6))
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(6), 4)


def test_a_prompt_one_below_the_limit_gets_one_token():
    driven = drive()
    driven.add("a", numbers(127), max_tokens=50)
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(127), 1)
    assert driven.reasons() == {"a": "length"}


# Continuing elsewhere


@pytest.mark.parametrize("num_known", [1, 3, 6, 11])
def test_a_request_that_comes_with_outputs_goes_on_where_it_was(num_known):
    whole = expected_tokens(numbers(10), 12)
    driven = drive()
    driven.add("a", numbers(10), outputs=whole[:num_known], max_tokens=12)
    driven.run()  # `Driven` checks start_pos
    assert driven.tokens["a"] == whole
    assert driven.reasons() == {"a": "length"}
    new_request = driven.executor.new_requests[0]
    assert (len(new_request.prompt_token_ids), len(new_request.output_token_ids)) == (10, num_known)


# Ends from outside


@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_an_abort_frees_everything_and_keeps_what_was_said(num_steps):
    driven = drive()
    driven.add("a", numbers(9), max_tokens=50)
    for _ in range(num_steps):
        driven.step()
    driven.abort("a")
    assert driven.engine.stats.kv_blocks_used == 0
    assert not driven.engine.has_unfinished_requests
    assert driven.tokens["a"] == expected_tokens(numbers(9), num_steps)
    assert driven.reasons() == {"a": "abort"}


def test_aborting_what_is_unknown_or_over_says_nothing():
    driven = drive()
    driven.add("a", numbers(9))
    driven.run()
    assert driven.engine.abort("a") is None
    assert driven.engine.abort("never heard of") is None


def test_time_ends_requests_that_run_and_requests_that_wait():
    driven = drive(max_num_seqs=1)
    driven.add("runs", numbers(5), max_tokens=50, timeout_s=10.0)
    driven.step()
    driven.add("waits", numbers(5, 1), timeout_s=9.0)
    driven.add("has time", numbers(5, 2), timeout_s=60.0)
    driven.clock.now += 9.5
    driven.step()
    assert driven.reasons() == {"waits": "timeout"}
    driven.clock.now += 1
    driven.run()
    assert driven.reasons() == {"waits": "timeout", "runs": "timeout", "has time": "length"}
    assert driven.tokens["runs"] == expected_tokens(numbers(5), 2)


def test_a_request_whose_time_was_up_before_it_came_ends_at_once():
    driven = drive()
    driven.add("late", numbers(5), timeout_s=-1.0)
    driven.run()
    assert driven.reasons() == {"late": "timeout"}
    assert driven.executor.plans == []


def test_the_date_of_a_request_that_is_over_does_not_end_a_later_one_of_its_id():
    driven = drive()
    for timeout_s in (10.0, 100.0, None):
        driven.ends.clear()
        driven.add("a", numbers(5), max_tokens=3, timeout_s=timeout_s)
        driven.step()
        driven.clock.now += 11 if timeout_s != 10.0 else 0
        driven.run()
        assert driven.reasons() == {"a": "length"}


# Steps that fail


def fails_on(first_token, length, error):
    return lambda context: error if context[0] == first_token and len(context) == length else None


@pytest.mark.parametrize("guilty", range(7))
@pytest.mark.parametrize("length", [6, 8])  # while its prompt is computed, and while it decodes
def test_one_guilty_request_ends_with_error_and_the_others_get_their_tokens(guilty, length):
    prompts = {f"r{i}": [10 + i, *numbers(5, i)] for i in range(7)}
    driven = drive(failure=fails_on(10 + guilty, length, RuntimeError("a broken kernel")))
    for request_id, prompt in prompts.items():
        driven.add(request_id, prompt, max_tokens=5)
    driven.run()
    for request_id, prompt in prompts.items():
        is_guilty = request_id == f"r{guilty}"
        assert driven.ends[request_id].finish_reason == ("error" if is_guilty else "length")
        wanted = length - 6 if is_guilty else 5
        assert driven.tokens[request_id] == expected_tokens(prompt, wanted)


def test_a_step_that_fails_once_fails_no_request_that_is_alone():
    failures = iter([None, RuntimeError("a moment's fault")])
    driven = drive(failure=lambda context: next(failures, None))
    driven.add("alone", numbers(5), max_tokens=4)
    driven.run()
    assert driven.reasons() == {"alone": "length"}
    assert driven.tokens["alone"] == expected_tokens(numbers(5), 4)


def test_in_the_step_in_which_one_request_fails_every_other_gains_its_token():
    driven = drive(failure=fails_on(12, 6, RuntimeError("a broken kernel")))
    for i in range(7):
        driven.add(f"r{i}", [10 + i, *numbers(5, i)], max_tokens=5)
    driven.step()
    assert [len(driven.tokens[f"r{i}"]) for i in range(7)] == [1, 1, 0, 1, 1, 1, 1]


def test_requests_that_fail_in_a_chunk_of_their_prompt_are_isolated_too():
    driven = drive(budget=8, failure=fails_on(3, 8, RuntimeError("no")))
    driven.add("bad", numbers(20, 0))
    driven.add("good", numbers(20, 1))
    driven.run()
    assert driven.reasons() == {"bad": "error", "good": "length"}
    assert driven.tokens["good"] == expected_tokens(numbers(20, 1), 4)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no memory left"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        KeyboardInterrupt(),
    ],
    ids=str,
)
def test_what_no_single_request_explains_is_raised(error):
    driven = drive(failure=lambda context: error)
    driven.add("a", numbers(5))
    driven.add("b", numbers(5, 1))
    with pytest.raises(type(error)):
        driven.engine.step()
    assert len(driven.executor.plans) == 1  # nothing is tried again


def test_an_interrupted_step_is_done_again_when_the_engine_goes_on():
    interruptions = iter([None, None, KeyboardInterrupt(), None, KeyboardInterrupt()])
    driven = drive(max_num_seqs=2, failure=lambda context: next(interruptions, None))
    for start in range(3):
        driven.add(f"r{start}", numbers(6, start), max_tokens=3, repetition_penalty=1.2)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            driven.run()
    driven.abort("r1")
    driven.run()
    assert driven.tokens["r0"] == expected_tokens(numbers(6, 0), 3)
    assert driven.tokens["r2"] == expected_tokens(numbers(6, 2), 3)


def test_an_interrupted_first_step_keeps_its_new_requests():
    interruptions = iter([KeyboardInterrupt()])
    driven = drive(failure=lambda context: next(interruptions, None))
    driven.add("a", numbers(6))
    with pytest.raises(KeyboardInterrupt):
        driven.step()
    driven.executor.histories.clear()  # as if the sampler had not come so far
    driven.run()
    assert driven.tokens["a"] == expected_tokens(numbers(6), 4)


def test_exit_gives_the_executor_back():
    driven = drive()
    driven.engine.exit()
    assert driven.executor.is_shut_down
