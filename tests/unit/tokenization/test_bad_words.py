import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

MAKES = {
    "byte-level": tiny_tokenizers.byte_level,
    "byte fallback": tiny_tokenizers.byte_fallback,
    "Gemma's": lambda: tiny_tokenizers.byte_fallback(strips=False),
    "Unigram": tiny_tokenizers.unigram,
}


@pytest.fixture(params=MAKES.values(), ids=MAKES)
def tokenizer(request):
    return Tokenizer(request.param())


def sequences(tokenizer, *words, **settings):
    return (
        SamplingParams(bad_words=words, **settings)
        .with_tokenized_bad_words(bad_word_tokenizer(tokenizer))
        .bad_sequences
    )


def avoids(banned, token_ids):
    """Return whether no banned sequence stands anywhere among the tokens."""
    return not any(
        token_ids[start : start + len(sequence)] == list(sequence)
        for sequence in banned
        for start in range(len(token_ids))
    )


@pytest.mark.parametrize("word", ["fox", "France", "Größe", "🙂", "quick brown", "dog."])
@pytest.mark.parametrize("text", ["{}", "the {}", "the {} over", "so:\n{} is", "\n{}", "return {}"])
def test_a_text_with_the_word_holds_a_bad_sequence(tokenizer, word, text):
    assert not avoids(sequences(tokenizer, word), tokenizer.encode(text.format(word), add_special_tokens=False))


def test_other_texts_hold_none(tokenizer):
    banned = sequences(tokenizer, "brown fox", "Paris")
    assert avoids(banned, tokenizer.encode("The quick dog; brown cats of France", add_special_tokens=False))


def test_spaces_before_a_word_make_no_difference(tokenizer):
    assert sequences(tokenizer, "  fox") == sequences(tokenizer, "fox")


def test_byte_level_bpe_tokenizes_a_word_with_and_without_a_space():
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    bare, spaced = tokenizer.encode("fox"), tokenizer.encode(" fox")
    assert sequences(tokenizer, "fox") == (tuple(bare), tuple(spaced))


def test_sequences_that_are_there_already_stay_and_no_word_is_spelled_twice(tokenizer):
    given = SamplingParams(bad_words=["fox", "fox"], bad_token_sequences=[[1, 2]])
    params = given.with_tokenized_bad_words(bad_word_tokenizer(tokenizer))
    assert params.bad_sequences == ((1, 2), *sequences(tokenizer, "fox"))
    assert params.bad_texts == ()
    assert params.with_tokenized_bad_words(bad_word_tokenizer(tokenizer)) == params


def test_without_bad_words_nothing_changes(tokenizer):
    params = SamplingParams(bad_token_sequences=[[1, 2]])
    assert params.with_tokenized_bad_words(bad_word_tokenizer(tokenizer)) is params


def test_a_word_of_too_many_tokens_is_refused(tokenizer):
    with pytest.raises(InvalidParameter, match=r"bad_words must hold words of 1 to 64 tokens, got .* of \d+") as caught:
        sequences(tokenizer, "🙂" * 70)
    assert caught.value.param == "bad_words"


def test_a_word_that_is_no_unicode_is_refused_by_its_own_name(tokenizer):
    with pytest.raises(InvalidParameter, match="bad_words must hold valid Unicode") as caught:
        sequences(tokenizer, "a\ud800")
    assert caught.value.param == "bad_words"
