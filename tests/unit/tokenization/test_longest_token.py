import pytest
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

import tiny_tokenizers
from rayinfer.tokenization.longest_token import max_chars_per_token
from rayinfer.tokenization.tokenizer import Tokenizer

UNICODE = "e\u0301" * 40 + "\u03b1\u0313\u0300\u0345" * 40 + "\u1112\u1161\u11ab" * 40


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "byte_fallback_without_strip"])
@pytest.mark.parametrize("text", [*tiny_tokenizers.LINES[:5], "größer als" * 30, "<|im end|>" * 30, " " * 200, UNICODE])
def test_no_text_is_longer_than_its_tokens_allow(kind, text):
    tokenizer = Tokenizer(tiny_tokenizers.MAKERS[kind]())
    assert len(text) <= len(tokenizer.encode(text)) * tokenizer.max_chars_per_token


def test_the_longest_token_counts_whether_learned_or_added():
    backend = tiny_tokenizers.byte_level()
    learned = max_chars_per_token(backend)
    assert learned == max(len(token) for token in backend.get_vocab())
    backend.add_tokens(["x" * 99])
    assert max_chars_per_token(backend) == 99


def test_composed_characters_count_for_all_that_they_are_made_of():
    backend = tiny_tokenizers.byte_level()
    longest = max_chars_per_token(backend)
    backend.normalizer = normalizers.NFC()
    assert max_chars_per_token(backend) == 4 * longest
    tokenizer = Tokenizer(backend)
    assert len(UNICODE) <= len(tokenizer.encode(UNICODE)) * tokenizer.max_chars_per_token


@pytest.mark.parametrize("kind", ["unigram", "word_piece", "word_level", "suffix_bpe"])
def test_where_unknown_text_becomes_one_token_there_is_no_limit(kind):
    assert max_chars_per_token(tiny_tokenizers.MAKERS[kind]()) is None


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
    assert max_chars_per_token(backend) is None
