import pytest

from rayinfer.tokenization.token_offsets import TokenOffsets
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers


def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(tiny_tokenizers.MAKERS[kind](), {"bos_token": "<s>", "eos_token": "</s>"})


def offsets_of(tokenizer, token_ids, *, context=(), skip_special_tokens=True):
    offsets = TokenOffsets(tokenizer, context, skip_special_tokens=skip_special_tokens)
    return [offsets.advance(token_id) for token_id in token_ids]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "byte_fallback_without_strip", "unigram"])
@pytest.mark.parametrize("num_prompt", [0, 3])
def test_the_text_has_every_tokens_own_text_where_it_begins(kind, num_prompt):
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode("The quick brown Größe, over one two three END")
    text = tokenizer.decode(token_ids)[len(tokenizer.decode(token_ids[:num_prompt])) :]
    offsets = offsets_of(tokenizer, token_ids[num_prompt:], context=token_ids[:num_prompt])
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    for token_id, offset in list(zip(token_ids[num_prompt:], offsets, strict=True))[1:]:
        spelled = tokenizer.token_text(token_id).text
        assert spelled.startswith("bytes:") or text.startswith(spelled, offset)


def test_the_parts_of_a_character_all_begin_where_it_begins():
    tokenizer = tokenizer_of("byte_level")
    token_ids = tokenizer.encode("a\N{OLD ITALIC LETTER A}b")
    assert offsets_of(tokenizer, token_ids) == [0, 1, 1, 1, 1, 2]


def test_bytes_that_make_no_character_count_as_what_they_become():
    tokenizer = tokenizer_of("byte_fallback")
    part, end = tokenizer.encode("\N{OLD ITALIC LETTER A}")[-4:-1], tokenizer.encode("one two")[-1:]
    text = tokenizer.decode([*part, *end])
    assert text.startswith("\N{REPLACEMENT CHARACTER}" * 3)
    assert offsets_of(tokenizer, [*part, *end, *end])[-1] == len(text)


def test_a_special_token_counts_if_it_is_shown():
    tokenizer = tokenizer_of("byte_level")
    token_ids = [*tokenizer.encode("a"), tokenizer.eos_token_id, *tokenizer.encode("b")]
    assert offsets_of(tokenizer, token_ids) == [0, 1, 1]
    assert offsets_of(tokenizer, token_ids, skip_special_tokens=False) == [0, 1, 5]
