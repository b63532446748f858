import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayinfer.tokenization.output_text import OutputText
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

KINDS = sorted(tiny_tokenizers.MAKERS)
# Decoders whose text depends on whether other text stands before it: all but these read the prompt as context.
WITHOUT_CONTEXT = {"byte_level", "byte_fallback_without_strip"}
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(tiny_tokenizers.MAKERS[kind](), {"bos_token": "<s>", "eos_token": "</s>"})


class Result(NamedTuple):
    text: str
    num_tokens: int
    stop_string: str | None


def feed(output: OutputText, token_ids: Sequence[int], cuts: Sequence[int]) -> Result:
    """Append the ids in pieces that end at the cuts, and add up what comes out."""
    borders = [0, *sorted({cut for cut in cuts if cut < len(token_ids)}), len(token_ids)]
    text, num_tokens, stop_string = "", 0, None
    for start, end in itertools.pairwise(borders):
        delta = output.append(token_ids[start:end], is_last=end == len(token_ids))
        text, num_tokens = text + delta.text, num_tokens + delta.num_tokens
        assert delta.stop_string is None or stop_string is None
        stop_string = delta.stop_string or stop_string
    assert output.append(token_ids, is_last=True) == ("", 0, None)
    return Result(text, num_tokens, stop_string)


def stream(kind: str, text: str, *, prompt: str = "", one_by_one: bool = True, **options) -> Result:
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode(text)
    cuts = range(len(token_ids)) if one_by_one else ()
    return feed(OutputText(tokenizer, tokenizer.encode(prompt), **options), token_ids, cuts)


def draw_ids(data: st.DataObject, tokenizer: Tokenizer, most: int = 24) -> list[int]:
    """Draw any ids, an unknown one among them, or those of a text with its characters whole."""
    any_ids = st.lists(st.integers(0, tokenizer.vocab_size), max_size=most)
    texts = st.text("aeno tT\n.é日🙂", max_size=most).map(tokenizer.encode)
    return data.draw(st.one_of(any_ids, texts, st.tuples(any_ids, texts).map(lambda pair: pair[0] + pair[1])), "ids")


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(data=st.data())
def test_deltas_together_are_what_decoding_all_tokens_at_once_gives(kind, data):
    tokenizer = tokenizer_of(kind)
    token_ids = draw_ids(data, tokenizer)
    skips = data.draw(st.booleans(), "skip_special_tokens")
    cuts = data.draw(st.one_of(st.just(range(len(token_ids))), st.lists(st.integers(0, 24))), "cuts")
    result = feed(OutputText(tokenizer, [], skip_special_tokens=skips), token_ids, cuts)
    assert result == (tokenizer.decode(token_ids, skip_special_tokens=skips), len(token_ids), None)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - WITHOUT_CONTEXT))
@QUICK
@given(data=st.data())
def test_behind_a_prompt_the_text_is_what_the_output_adds_to_the_decoded_prompt(kind, data):
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer.encode("The capital of France")
    token_ids = draw_ids(data, tokenizer)
    before = tokenizer.decode(prompt, skip_special_tokens=False)
    together = tokenizer.decode(prompt + token_ids, skip_special_tokens=False)
    result = feed(OutputText(tokenizer, prompt, skip_special_tokens=False), token_ids, range(len(token_ids)))
    assert before + result.text == together


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(data=st.data())
def test_a_stop_string_ends_the_text_where_the_whole_text_says_and_never_leaks(kind, data):
    tokenizer = tokenizer_of(kind)
    token_ids = draw_ids(data, tokenizer)
    whole = tokenizer.decode(token_ids)
    starts = st.integers(0, max(len(whole) - 1, 0))
    pieces = st.tuples(starts, st.integers(1, 6)).map(lambda span: whole[span[0] : span[0] + span[1]])
    stops = [stop for stop in data.draw(st.lists(pieces, min_size=1, max_size=3), "stops") if stop]
    includes = data.draw(st.booleans(), "include_stop_str_in_output")
    options = {"stop_strings": stops, "include_stop_str_in_output": includes}
    all_at_once = feed(OutputText(tokenizer, [], **options), token_ids, ())
    cuts = data.draw(st.lists(st.integers(0, 24)), "cuts")

    assert feed(OutputText(tokenizer, [], **options), token_ids, cuts) == all_at_once
    assert feed(OutputText(tokenizer, [], **options), token_ids, range(len(token_ids))) == all_at_once
    assert (all_at_once.stop_string is not None) == bool(stops)
    if not stops:
        return
    until_stop = tokenizer.decode(token_ids[: all_at_once.num_tokens])
    end, start, stop = min((until_stop.find(s) + len(s), until_stop.find(s), s) for s in stops if s in until_stop)
    assert all_at_once.stop_string == stop
    assert all_at_once.text == until_stop[: end if includes else start]
    if not includes:
        assert not any(s in all_at_once.text for s in stops)
    before = tokenizer.decode(token_ids[: all_at_once.num_tokens - 1]).rstrip("\N{REPLACEMENT CHARACTER}")
    assert not any(s in before for s in stops)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_an_incomplete_character_waits_for_its_last_byte(kind):
    tokenizer = tokenizer_of(kind)
    output = OutputText(tokenizer, tokenizer.encode("x"))
    token_ids = tokenizer.encode("a\N{OLD ITALIC LETTER A}b", add_special_tokens=False)
    texts = [output.append([token_id], is_last=False).text for token_id in token_ids]
    assert "".join(texts).strip() == "a\N{OLD ITALIC LETTER A}b"
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts)


def test_what_is_left_of_a_character_is_given_up_at_the_end():
    tokenizer = tokenizer_of("byte_level")
    token_ids = tokenizer.encode("ok \N{OLD ITALIC LETTER A}")[:-1]
    assert feed(OutputText(tokenizer, []), token_ids, range(9)).text == "ok \N{REPLACEMENT CHARACTER}"


def byte_ids(content: bytes) -> list[int]:
    backend = tiny_tokenizers.byte_fallback()
    return [backend.token_to_id(f"<0x{byte:02X}>") for byte in content]


def test_byte_tokens_that_prove_broken_become_replacement_characters_as_the_decoder_has_it():
    tokenizer = tokenizer_of("byte_fallback")
    token_ids = byte_ids(b"A\n\xff") + tokenizer.encode("the")
    result = feed(OutputText(tokenizer, tokenizer.encode("x")), token_ids, range(9))
    assert result.text == "\N{REPLACEMENT CHARACTER}" * 3 + " the"


def test_bytes_after_a_broken_run_are_read_afresh():
    tokenizer = tokenizer_of("byte_fallback")
    token_ids = [*byte_ids(b"\xf0\x9f"), *tokenizer.encode("the"), *byte_ids(b"ok")]
    result = feed(OutputText(tokenizer, tokenizer.encode("x")), token_ids, range(9))
    assert result.text == "\N{REPLACEMENT CHARACTER}" * 2 + " theok"


def test_a_stop_string_may_begin_before_text_that_is_taken_back():
    tokenizer = tokenizer_of("byte_fallback")
    token_ids = [*tokenizer.encode("the"), *byte_ids(b"A\xff"), *tokenizer.encode("one")]
    output = OutputText(tokenizer, tokenizer.encode("x"), stop_strings=["e\N{REPLACEMENT CHARACTER}"])
    assert feed(output, token_ids, range(99)).text == " th"


def test_a_skipped_token_does_not_end_a_run_of_bytes():
    tokenizer = tokenizer_of("byte_fallback")
    eos = tokenizer.eos_token_id
    token_ids = [*byte_ids(b"A"), eos, *byte_ids(b"\xff")]
    result = feed(OutputText(tokenizer, tokenizer.encode("x")), token_ids, range(9))
    assert result.text == "\N{REPLACEMENT CHARACTER}" * 2


def test_the_space_that_a_text_begins_with_is_lost_as_the_decoder_has_it():
    tokenizer = tokenizer_of("byte_fallback")
    assert feed(OutputText(tokenizer, []), byte_ids(b"  a"), range(9)).text == " a"
    assert feed(OutputText(tokenizer, tokenizer.encode("x")), byte_ids(b"  a"), range(9)).text == "  a"


def test_a_stop_string_made_of_byte_tokens_is_found_at_its_last_token():
    tokenizer = tokenizer_of("byte_fallback")
    (newline,) = byte_ids(b"\n")
    output = OutputText(tokenizer, tokenizer.encode("x"), stop_strings=["\n\n"])
    assert output.append([newline], is_last=False) == ("", 1, None)
    assert output.append([newline], is_last=False) == ("", 1, "\n\n")


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_stop_string_is_found_across_token_borders_and_inside_a_merged_token(one_by_one):
    text = "one two three four"
    across = stream("byte_level", text, one_by_one=one_by_one, stop_strings=["o thr"])
    assert (across.text, across.stop_string) == ("one tw", "o thr")
    inside = stream("byte_level", text, one_by_one=one_by_one, stop_strings=["hre"])
    assert (inside.text, inside.stop_string) == ("one two t", "hre")
    assert inside.num_tokens < len(tokenizer_of("byte_level").encode(text))


def test_an_included_stop_string_is_the_last_of_the_text():
    result = stream("byte_level", "one two three", stop_strings=["wo th"], include_stop_str_in_output=True)
    assert result.text == "one two th"


def test_the_stop_string_that_is_complete_first_wins_and_of_two_that_end_together_the_longer():
    assert stream("byte_level", "abcde", stop_strings=["bcde", "cd"]).stop_string == "cd"
    assert stream("byte_level", "abcde", stop_strings=["d", "bcd", "cd"]).text == "a"


def test_text_that_may_begin_a_stop_string_is_held_until_it_cannot():
    tokenizer = tokenizer_of("byte_level")
    output = OutputText(tokenizer, [], stop_strings=["aab"])
    a, b = tokenizer.encode("a")[0], tokenizer.encode("c")[0]
    assert [output.append([i], is_last=False).text for i in (a, a, a, b)] == ["", "", "a", "aac"]


def test_what_was_held_for_a_stop_string_comes_out_at_the_end():
    result = stream("byte_level", "the EN", stop_strings=["END"])
    assert (result.text, result.stop_string) == ("the EN", None)


def test_stop_strings_are_passed_over_before_min_tokens():
    tokenizer = tokenizer_of("byte_level")
    ids = [tokenizer.encode(letter)[0] for letter in "xyxxy"]
    result = feed(OutputText(tokenizer, [], stop_strings=["x"], min_tokens=3), ids, range(5))
    assert result == ("xy", 3, "x")
    overlapping = feed(OutputText(tokenizer, [], stop_strings=["yx"], min_tokens=4), ids, range(5))
    assert overlapping == ("xyxxy", 5, None)


def test_the_tokens_behind_a_stop_string_do_not_count():
    tokenizer = tokenizer_of("byte_level")
    ids = [tokenizer.encode(letter)[0] for letter in "abcde"]
    output = OutputText(tokenizer, [], stop_strings=["c"])
    assert output.append(ids, is_last=False) == ("ab", 3, "c")
    assert output.append(ids, is_last=False) == ("", 0, None)


def test_the_first_word_keeps_its_space_behind_a_prompt_and_loses_it_without():
    assert stream("unigram", "one", prompt="The").text == " one"
    assert stream("unigram", "one").text == "one"
    assert stream("byte_fallback", "one", prompt="The").text == " one"


class CountingBackend:
    """A tokenizer that counts the ids it is asked to decode."""

    def __init__(self, backend):
        self._backend = backend
        self.num_decoded = 0

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def decode(self, token_ids, **options):
        self.num_decoded += len(token_ids)
        return self._backend.decode(token_ids, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_answer_costs_no_more_per_token_than_a_short_one(kind):
    backend = CountingBackend(tiny_tokenizers.MAKERS[kind]())
    tokenizer = Tokenizer(backend)
    words = tokenizer.encode("one two three four five 日本 END of")

    def num_decoded_for(num_rounds):
        output = OutputText(tokenizer, words, stop_strings=["nowhere"])
        before = backend.num_decoded
        for token_id in words * num_rounds:
            output.append([token_id], is_last=False)
        return backend.num_decoded - before

    num_decoded_for(2)
    assert num_decoded_for(200) <= 10.5 * num_decoded_for(20)
