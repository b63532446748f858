import json

import pytest
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from rayinfer.tokenization.longest_token import LongestToken, find_longest_token
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

UNICODE = "e\u0301" * 40 + "\u03b1\u0313\u0300\u0345" * 40 + "\u1112\u1161\u11ab" * 40


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "byte_fallback_without_strip"])
@pytest.mark.parametrize("text", [*tiny_tokenizers.LINES[:5], "größer als" * 30, "<|im end|>" * 30, " " * 200, UNICODE])
def test_no_text_is_longer_than_its_tokens_allow(kind, text):
    tokenizer = Tokenizer(tiny_tokenizers.MAKERS[kind]())
    assert 0 < tokenizer.least_num_tokens(text) <= len(tokenizer.encode(text))


def test_the_longest_token_counts_whether_learned_or_added():
    backend = tiny_tokenizers.byte_level()
    learned = find_longest_token(backend)
    assert learned == LongestToken(max(len(token) for token in backend.get_vocab()))
    backend.add_tokens(["x" * 99])
    assert find_longest_token(backend) == LongestToken(99)


def test_composed_characters_count_for_all_that_they_are_made_of():
    backend = tiny_tokenizers.byte_level()
    longest = find_longest_token(backend)
    backend.normalizer = normalizers.NFC()
    assert find_longest_token(backend) == LongestToken(4 * longest.num_chars)
    tokenizer = Tokenizer(backend)
    assert 0 < tokenizer.least_num_tokens(UNICODE) <= len(tokenizer.encode(UNICODE))


def _without(backend, *tokens):
    settings = json.loads(backend.to_str())
    settings["model"]["merges"] = []
    for token in tokens:
        del settings["model"]["vocab"][token]
    return type(backend).from_str(json.dumps(settings))


def test_characters_that_the_vocabulary_cannot_spell_count_for_nothing():
    tokenizer = Tokenizer(_without(tiny_tokenizers.byte_level(), "\u0116", "\u00f1"))  # the bytes 0x16 and 0xF1
    for text in ("\x16" * 900, "a\x16" * 900, "\U00040000" * 900):
        assert tokenizer.least_num_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.encode("\x16" * 900) == []
    assert tokenizer.least_num_tokens("a\x16" * 900) == tokenizer.least_num_tokens("a" * 900) > 0


def test_without_every_byte_there_is_no_limit_where_characters_could_vanish_whole():
    assert find_longest_token(_without(tiny_tokenizers.byte_level(), "\u0122")) is None  # the byte 0x80
    assert find_longest_token(_without(tiny_tokenizers.byte_fallback(), "<0x41>")) is None


@pytest.mark.parametrize("kind", ["unigram", "word_piece", "word_level", "suffix_bpe"])
def test_where_unknown_text_becomes_one_token_there_is_no_limit(kind):
    assert find_longest_token(tiny_tokenizers.MAKERS[kind]()) is None


def _stripping(backend):
    backend.normalizer = normalizers.Strip()


def _shrinking(backend):
    backend.normalizer = normalizers.Sequence([normalizers.Replace("    ", " ")])


def _replacing_by_pattern(backend):
    backend.normalizer = normalizers.Replace(Regex(" +"), " ")


def _splitting_away(backend):
    split = pre_tokenizers.Split(" ", "removed")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _swallowing(backend):
    backend.add_special_tokens([AddedToken("<greedy>", rstrip=True)])


@pytest.mark.parametrize("change", [_stripping, _shrinking, _replacing_by_pattern, _splitting_away, _swallowing])
def test_where_text_may_vanish_there_is_no_limit(change):
    backend = tiny_tokenizers.byte_level()
    change(backend)
    assert find_longest_token(backend) is None
