from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.outputs import Logprob, OutputAggregate, RequestOutput, TokenDelta, TokenLogprobs
from rayinfer.protocols import EngineRequestId, GenerationRequest
from rayinfer.routing.stream_state import StreamState
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level(), {"eos_token": "</s>"})
EOS = TOKENIZER.encode("</s>")[0]
PROMPT = TOKENIZER.encode("What?")


def ids(text: str) -> list[int]:
    """Give each letter a token of its own."""
    return [token_id for letter in text for token_id in TOKENIZER.encode(letter)]


class AggregatedStream(StreamState):
    """A StreamState whose outputs are aggregated."""

    def __init__(self, request, tokenizer):
        super().__init__(request, tokenizer)
        self._outputs = OutputAggregate(request.sampling_params.n)

    def apply(self, delta):
        return self._add(super().apply(delta))

    def fail(self, finish_reason):
        return self._add(super().fail(finish_reason))

    def whole(self):
        return self._outputs.whole()

    def _add(self, output):
        if output is not None:
            self._outputs.add(output)
        return output


def stream(*, output_token_ids: Sequence[int] = (), **params) -> AggregatedStream:
    request = GenerationRequest(
        request_id="r",
        prompt_token_ids=PROMPT,
        output_token_ids=list(output_token_ids),
        sampling_params=SamplingParams(**params),
        priority=-3,
        tenant="me",
    )
    return AggregatedStream(request, TOKENIZER)


def delta(text: str | list[int], start: int, choice: int = 0, attempt: int = 0, **fields) -> TokenDelta:
    return TokenDelta(
        str(EngineRequestId("r", choice, attempt)), start, ids(text) if isinstance(text, str) else text, **fields
    )


def scored(token_ids: Sequence[int]) -> list[TokenLogprobs]:
    """Give each token a log probability of its own."""
    return [{token_id: Logprob(-token_id / 100, 1)} for token_id in token_ids]


PROMPT_LOGPROBS = [None, *scored(PROMPT[1:])]


def only(output: RequestOutput | None):
    assert output is not None
    (choice,) = output.outputs
    return choice


def test_n_answers_are_n_engine_requests_that_keep_everything_else():
    requests = stream(n=3, seed=7, stop=["x"]).engine_requests()
    assert [(r.request_id, r.choice, r.sampling_params.n) for r in requests] == [
        ("r/0", 0, 1),
        ("r/1", 1, 1),
        ("r/2", 2, 1),
    ]
    assert all((r.priority, r.tenant, r.sampling_params.seed) == (-3, "me", 7) for r in requests)
    assert [r.request_id for r in stream(n=1).engine_requests()] == ["r/0"]


def test_deltas_become_text_and_the_last_one_says_why_it_ended():
    state = stream()
    first = state.apply(delta("ab", 0, num_cached_tokens=4))
    assert (only(first).text, only(first).token_ids, only(first).finish_reason) == ("ab", ids("ab"), None)
    assert (first.request_id, first.prompt_token_ids, first.num_cached_tokens, first.finished) == (
        "r",
        PROMPT,
        4,
        False,
    )
    last = state.apply(delta("c", 2, finish_reason="length"))
    assert (only(last).text, only(last).token_ids, only(last).finish_reason, last.finished) == (
        "c",
        ids("c"),
        "length",
        True,
    )
    assert state.is_finished
    assert (only(state.whole()).text, only(state.whole()).token_ids) == ("abc", ids("abc"))
    assert (state.num_output_tokens, state.num_cached_tokens, state.stopped_request_ids()) == (3, 4, [])


def test_tokens_that_make_no_text_yet_travel_with_the_next_that_do():
    state = stream()
    face = TOKENIZER.encode("\N{OLD ITALIC LETTER A}")
    logprobs = scored(face)
    for position, token_id in enumerate(face[:-1]):
        assert state.apply(delta([token_id], position, logprobs=[logprobs[position]])) is None
    output = only(state.apply(delta(face[-1:], len(face) - 1, logprobs=logprobs[-1:])))
    assert (output.text, output.token_ids, output.logprobs) == ("\N{OLD ITALIC LETTER A}", face, logprobs)
    assert only(state.whole()).logprobs == logprobs


def test_a_stop_string_ends_the_choice_and_has_the_engine_request_aborted_once():
    state = stream(n=2, stop=["lo w"])
    assert only(state.apply(delta("hel", 0))).text == "he"
    output = state.apply(delta("lo world", 3, logprobs=scored(ids("lo world"))))
    choice = only(output)
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("l", "stop", "lo w")
    assert choice.token_ids == ids("lo w")
    assert choice.logprobs == scored(ids("lo w"))
    assert not output.finished
    assert state.stopped_request_ids() == ["r/0"]
    assert state.stopped_request_ids() == []
    assert state.apply(delta("more", 11, finish_reason="length")) is None
    assert (state.whole().outputs[0].text, state.whole().outputs[0].token_ids) == ("hel", ids("hello w"))
    assert state.num_output_tokens == len(ids("hello w"))
    assert [r.request_id for r in state.engine_requests()] == ["r/1"]


def test_an_engine_request_that_ended_by_itself_is_not_aborted():
    state = stream(stop=["b"])
    choice = only(state.apply(delta("ab", 0, finish_reason="length")))
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("a", "stop", "b")
    assert state.stopped_request_ids() == []


def test_the_stop_token_counts_but_has_no_text():
    by_id = stream(stop_token_ids=ids("c"))
    choice = only(by_id.apply(delta("abc", 0, finish_reason="stop", stop_reason=ids("c")[0])))
    assert (choice.text, choice.token_ids, choice.stop_reason) == ("ab", ids("abc"), ids("c")[0])
    shown = stream(stop_token_ids=ids("c"), include_stop_str_in_output=True)
    assert only(shown.apply(delta("abc", 0, finish_reason="stop", stop_reason=ids("c")[0]))).text == "abc"
    by_end_of_text = stream(skip_special_tokens=False)
    assert only(by_end_of_text.apply(delta([*ids("ab"), EOS], 0, finish_reason="stop"))).text == "ab"
    by_length = stream(skip_special_tokens=False, ignore_eos=True)
    assert only(by_length.apply(delta([EOS], 0, finish_reason="length"))).text == "</s>"


def test_a_stop_string_before_the_stop_token_wins():
    state = stream(stop=["b"])
    choice = only(state.apply(delta([*ids("abc"), EOS], 0, finish_reason="stop")))
    assert (choice.text, choice.token_ids, choice.stop_reason) == ("a", ids("ab"), "b")


def test_an_end_without_text_is_visible_and_brings_the_tokens_that_waited():
    state = stream(stop=["xyz"])
    assert state.apply(delta("xy", 0)) is None
    choice = only(state.apply(delta([], 2, finish_reason="abort")))
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("xy", ids("xy"), "abort")


def test_tokens_below_the_known_position_are_dropped():
    state = stream()
    state.apply(delta("abc", 0))
    assert state.apply(delta("ab", 0)) is None
    overlapping = state.apply(delta("bcd", 1, logprobs=scored(ids("bcd"))))
    assert (only(overlapping).text, only(overlapping).token_ids, only(overlapping).logprobs) == (
        "d",
        ids("d"),
        scored(ids("d")),
    )


def test_a_gap_is_an_error_of_ours():
    state = stream()
    state.apply(delta("a", 0))
    with pytest.raises(RuntimeError, match="r/0"):
        state.apply(delta("c", 2))
    with pytest.raises(RuntimeError, match="r/7"):
        state.apply(delta("c", 0, choice=7))


def test_a_stream_continues_elsewhere_from_its_tokens_so_far():
    state = stream(n=2)
    state.apply(delta("ab", 0))
    state.apply(delta("x", 0, choice=1, finish_reason="length"))
    (request,) = state.engine_requests(attempt=1)
    assert (request.request_id, request.output_token_ids, request.attempt) == ("r/0@1", ids("ab"), 1)
    assert only(state.apply(delta("cd", 2, attempt=1))).text == "cd"
    assert state.whole().outputs[0].text == "abcd"
    with pytest.raises(RuntimeError, match="r/0"):
        state.apply(delta("ef", 4))  # the first attempt's late words
    assert request.output_token_ids == ids("ab")


def test_a_request_that_begins_with_output_gives_only_what_is_new():
    face = TOKENIZER.encode("\N{OLD ITALIC LETTER A}")
    state = stream(output_token_ids=[*ids("ab"), *face[:-1]])
    (request,) = state.engine_requests()
    assert request.output_token_ids == [*ids("ab"), *face[:-1]]
    choice = only(state.apply(delta(face[-1:], len(request.output_token_ids), finish_reason="length")))
    assert (choice.text, choice.token_ids) == ("\N{OLD ITALIC LETTER A}", face[-1:])


def test_failing_ends_what_is_open_and_gives_out_what_was_held():
    state = stream(n=3, stop=["xyz"])
    state.apply(delta("axy", 0))
    state.apply(delta("b", 0, choice=1, finish_reason="length"))
    output = state.fail("timeout")
    assert [(c.index, c.text, c.finish_reason) for c in output.outputs] == [(0, "xy", "timeout"), (2, "", "timeout")]
    assert output.finished
    assert state.stopped_request_ids() == ["r/0", "r/2"]
    assert [c.text for c in state.whole().outputs] == ["axy", "b", ""]
    assert state.apply(delta("z", 3)) is None
    assert state.fail("abort").outputs == []


def test_failing_gives_out_what_was_held_for_two_reasons_at_once():
    state = stream(n=2, stop=["xyz"], prompt_logprobs=0)
    state.apply(delta("axy", 0, choice=1))
    assert [c.text for c in state.fail("timeout").outputs] == ["", "axy"]


def test_choices_end_one_by_one_and_the_request_with_the_last():
    state = stream(n=2)
    assert not state.apply(delta("a", 0, choice=1, finish_reason="length")).finished
    assert state.apply(delta("b", 0, finish_reason="length")).finished
    assert [(c.index, c.text) for c in state.whole().outputs] == [(0, "b"), (1, "a")]


def test_of_several_choices_the_one_that_found_least_in_the_cache_counts():
    state = stream(n=2)
    state.apply(delta("a", 0, choice=1, num_cached_tokens=5))
    state.apply(delta("a", 0, choice=0, num_cached_tokens=0))
    state.apply(delta("b", 1, choice=1))
    assert state.num_cached_tokens == 0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, TOKENIZER.vocab_size), max_size=4), min_size=1, max_size=8),
    st.lists(st.integers(0, 3), max_size=8),
    st.sampled_from([(), ("e",), ("a", "th")]),
)
def test_whatever_the_engine_repeats_the_client_gets_every_token_once(steps, repeats, stop):
    state = stream(stop=stop)
    whole = [token_id for step in steps for token_id in step]
    outputs, position = [], 0
    for number, step in enumerate(steps):
        back = min(repeats[number] if number < len(repeats) else 0, position)
        end = position + len(step)
        reason = "length" if number == len(steps) - 1 else None
        outputs.append(state.apply(delta(whole[position - back : end], position - back, finish_reason=reason)))
        position = end
    seen = [output for output in outputs if output is not None]
    token_ids = [token_id for output in seen for token_id in only(output).token_ids]
    assert [output.finished for output in seen] == [False] * (len(seen) - 1) + [True]
    assert token_ids == whole[: state.num_output_tokens] == only(state.whole()).token_ids
    assert "".join(only(output).text for output in seen) == only(state.whole()).text
    if only(seen[-1]).finish_reason == "length":
        assert only(state.whole()).text == TOKENIZER.decode(whole)


def test_a_silent_stop_token_keeps_its_log_probability():
    state = stream(logprobs=0)
    choice = only(state.apply(delta([*ids("a"), EOS], 0, finish_reason="stop", logprobs=scored([*ids("a"), EOS]))))
    assert (choice.text, choice.logprobs) == ("a", scored([*ids("a"), EOS]))


def test_only_the_first_choice_asks_for_the_prompts_log_probabilities_and_only_until_it_has_them():
    state = stream(n=3, prompt_logprobs=2, logprobs=1)
    asked = [request.sampling_params.prompt_logprobs for request in state.engine_requests()]
    assert asked == [2, None, None]
    assert {request.sampling_params.logprobs for request in state.engine_requests()} == {1}
    state.apply(delta("a", 0, prompt_logprobs=PROMPT_LOGPROBS, logprobs=scored(ids("a"))))
    assert [request.sampling_params.prompt_logprobs for request in state.engine_requests(attempt=1)] == [None] * 3


def test_the_prompts_log_probabilities_come_once_and_with_the_first_output():
    state = stream(n=3, prompt_logprobs=0)
    assert state.apply(delta("x", 0, choice=1)) is None
    assert state.apply(delta("y", 0, choice=2, finish_reason="length")) is None
    assert state.apply(delta("z", 1, choice=1)) is None
    first = state.apply(delta("a", 0, prompt_logprobs=PROMPT_LOGPROBS))
    assert first.prompt_logprobs == PROMPT_LOGPROBS
    assert [(part.index, part.text, part.finish_reason) for part in first.outputs] == [
        (0, "a", None),
        (1, "xz", None),
        (2, "y", "length"),
    ]
    later = state.apply(delta("b", 1))
    assert (later.prompt_logprobs, only(later).text) == (None, "b")
    assert state.whole().prompt_logprobs == PROMPT_LOGPROBS


def test_a_prompt_that_is_only_scored_ends_without_a_token():
    state = stream(max_tokens=0, prompt_logprobs=1)
    output = state.apply(delta([], 0, finish_reason="length", prompt_logprobs=PROMPT_LOGPROBS))
    assert output.finished
    assert output.prompt_logprobs == PROMPT_LOGPROBS
    assert (only(output).text, only(output).token_ids, only(output).finish_reason) == ("", [], "length")
    assert only(output).logprobs is None


def test_a_prompt_whose_scoring_fails_delays_no_choice():
    state = stream(n=2, prompt_logprobs=0)
    state.apply(delta("x", 0, choice=1))
    output = state.apply(delta([], 0, finish_reason="error"))
    ends = [(part.index, part.text, part.finish_reason) for part in output.outputs]
    assert ends == [(0, "", "error"), (1, "x", None)]
    assert output.prompt_logprobs is None
    assert only(state.apply(delta("y", 1, choice=1))).text == "y"
    held = stream(n=2, prompt_logprobs=0)
    held.apply(delta("x", 0, choice=1, finish_reason="length"))
    failed = held.fail("timeout")
    assert [(part.index, part.text, part.finish_reason) for part in failed.outputs] == [
        (0, "", "timeout"),
        (1, "x", "length"),
    ]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, TOKENIZER.vocab_size), max_size=4), min_size=1, max_size=8),
    st.integers(0, 8),
    st.sampled_from([(), ("e",), ("a", "th")]),
)
def test_a_migrated_stream_returns_every_log_probability_once(steps, death, stop):
    """The engine dies before step `death`; another one begins where the first was heard last."""
    state = stream(stop=stop, logprobs=0, prompt_logprobs=0)
    outputs, said = [], []
    for number, step in enumerate(steps):
        if number == death:
            for request in state.engine_requests(attempt=1):
                assert request.output_token_ids == said
                assert (request.sampling_params.prompt_logprobs is None) == bool(outputs)
        reason = "length" if number == len(steps) - 1 else None
        prompt_logprobs = PROMPT_LOGPROBS if not outputs else None
        step_logprobs = scored(step)
        outputs.append(
            state.apply(
                delta(
                    step,
                    len(said),
                    attempt=int(number >= death),
                    finish_reason=reason,
                    logprobs=step_logprobs,
                    prompt_logprobs=prompt_logprobs,
                )
            )
        )
        said += step
        if state.is_finished:
            break
    seen = [output for output in outputs if output is not None]
    assert [output.prompt_logprobs for output in seen] == [PROMPT_LOGPROBS] + [None] * (len(seen) - 1)
    token_ids = [token_id for output in seen for token_id in only(output).token_ids]
    logprobs = [place for output in seen for place in only(output).logprobs or []]
    assert logprobs == scored(token_ids) == (only(state.whole()).logprobs or [])
    assert token_ids == said[: state.num_output_tokens]


@pytest.mark.parametrize("parts", [("a", 0, 0), ("a/b@3", 12, 0), ("cmpl-7", 2, 5)])
def test_an_engine_request_is_named_after_its_stream_choice_and_attempt(parts):
    assert EngineRequestId.parse(str(EngineRequestId(*parts))) == parts
