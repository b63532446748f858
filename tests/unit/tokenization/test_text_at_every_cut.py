"""Difficult texts, ended and cut behind each of their tokens, by every make of tokenizer."""

import functools

import pytest
from tokenizers import decoders

from rayinfer.tokenization.output_text import OutputText
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers
from support.tiny_models.varied_texts import FAMILY, FLAGS, MARKS

KINDS = sorted(tiny_tokenizers.MAKERS)
TEXTS = {
    "family": f"a{FAMILY} x",
    "flags": FLAGS,
    "marks": MARKS,
    "special tokens": "a </s>é<|im end|>\n<s>日本",
    "what looks like bytes": "<0x0A>▁ \ufffd é\x00",
    "added tokens": "<tool>größer als x",
}
# Those whose tokens spell every character: only there can any part of a text be waited for.
WHOLE_KINDS = ("byte_level", "byte_fallback", "byte_fallback_without_strip")


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(tiny_tokenizers.MAKERS[kind](), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_ends_anywhere_is_its_tokens_decoded_wherever_it_was_cut(kind, name):
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode(TEXTS[name])
    for skips in (True, False):
        for end in range(len(token_ids) + 1):
            decoded = tokenizer.decode(token_ids[:end], skip_special_tokens=skips)
            for cut in range(end + 1):
                output = OutputText(tokenizer, [], skip_special_tokens=skips)
                before = output.append(token_ids[:cut], is_last=False).text
                assert before + output.append(token_ids[cut:end], is_last=True).text == decoded
                assert decoded.startswith(before)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_deltas_of_single_tokens_are_the_answers_parts_in_order(kind, name):
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode(TEXTS[name])
    output = OutputText(tokenizer, [])
    deltas = [output.append([token_id], is_last=False).text for token_id in token_ids]
    assert "".join(deltas) + output.append([], is_last=True).text == tokenizer.decode(token_ids)
    whole = tokenizer.decode(token_ids)
    if "\ufffd" not in whole:  # no part of a character is ever shown
        assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("includes", [True, False])
@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_every_part_of_a_text_stops_it_at_the_token_that_completes_it_and_nothing_leaks(kind, includes):
    tokenizer = tokenizer_of(kind)
    for text in ("né 👩\u200d👧!", "🇫🇷🇩🇪 e\u0301x", "one two </s>three"):
        token_ids = tokenizer.encode(text)
        texts = [tokenizer.decode(token_ids[:end]) for end in range(len(token_ids) + 1)]
        for stop in {texts[-1][i:j] for i in range(len(texts[-1])) for j in range(i + 1, i + 7)}:
            output = OutputText(tokenizer, [], stop_strings=[stop], include_stop_str_in_output=includes)
            shown, num_tokens, found = "", 0, None
            for token_id in token_ids:
                delta = output.append([token_id], is_last=num_tokens + 1 == len(token_ids))
                shown, num_tokens, found = shown + delta.text, num_tokens + delta.num_tokens, delta.stop_string
                if found is not None:
                    break
                assert stop not in shown
            first = next(end for end, so_far in enumerate(texts) if stop in so_far)
            assert (found, num_tokens) == (stop, first)
            start = texts[first].index(stop)
            assert shown == texts[first][: start + len(stop) if includes else start]


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.ByteFallback(), decoders.Metaspace()],
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")],
    ],
    ids=["metaspace behind bytes", "replacing behind bytes"],
)
def test_bytes_wait_for_the_end_of_their_run_where_the_decoder_is_of_another_make(steps):
    backend = tiny_tokenizers.unigram_with_bytes()
    backend.decoder = decoders.Sequence(steps)
    tokenizer = Tokenizer(backend)
    lead, newline = (backend.token_to_id(f"<0x{byte:02X}>") for byte in (0xC3, 0x0A))
    one = tokenizer.encode("one")
    for token_ids in ([*one, newline, lead, *one], [*one, newline, *one], [*one, newline, lead]):
        output = OutputText(tokenizer, [])
        deltas = [output.append([token_id], is_last=False).text for token_id in token_ids]
        assert "".join(deltas) + output.append([], is_last=True).text == tokenizer.decode(token_ids)
