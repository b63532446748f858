import pytest

from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

FACE = "\N{SLIGHTLY SMILING FACE}"


def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(tiny_tokenizers.MAKERS[kind](), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "byte_fallback_without_strip"])
def test_bytes_of_tokens_make_up_the_text(kind):
    tokenizer = tokenizer_of(kind)
    text = f"The Größe 日本 {FACE}👩‍👩‍👧 END\n\n"
    spelled = [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text)]
    assert b"".join(token.utf8 for token in spelled).decode().lstrip(" ") == text
    for token in spelled:
        if not token.text.startswith("bytes:"):
            assert token.text.encode() == token.utf8


def test_a_part_of_a_character_is_spelled_in_bytes():
    tokenizer = tokenizer_of("byte_level")
    first, *_ = (tokenizer.token_text(token_id) for token_id in tokenizer.encode("\N{OLD ITALIC LETTER A}"))
    assert (first.text, first.utf8) == (r"bytes:\xf0", b"\xf0")
    fallback = tokenizer_of("byte_fallback")
    parts = [fallback.token_text(token_id) for token_id in fallback.encode("\N{OLD ITALIC LETTER A}")]
    assert [part.utf8 for part in parts][-4:] == [bytes([byte]) for byte in "\N{OLD ITALIC LETTER A}".encode()]
    assert parts[-1].text == r"bytes:\x80"


@pytest.mark.parametrize("kind", sorted(tiny_tokenizers.MAKERS))
def test_a_special_token_is_spelled_out(kind):
    tokenizer = tokenizer_of(kind)
    assert tokenizer.token_text(tokenizer.eos_token_id).text.strip() == "</s>"


def test_a_token_that_begins_a_word_keeps_its_space():
    for kind in ("byte_fallback", "unigram"):
        tokenizer = tokenizer_of(kind)
        words = [tokenizer.token_text(token_id).text for token_id in tokenizer.encode("one two")]
        assert "".join(words) == " one two"


@pytest.mark.parametrize("kind", sorted(tiny_tokenizers.MAKERS))
def test_an_id_that_is_no_token_is_spelled_by_its_number(kind):
    tokenizer = tokenizer_of(kind)
    assert tokenizer.token_text(10**6) == ("token_id:1000000", None)


@pytest.mark.parametrize("kind", sorted(tiny_tokenizers.MAKERS))
def test_every_token_of_every_make_can_be_spelled(kind):
    tokenizer = tokenizer_of(kind)
    for token_id in range(tokenizer.vocab_size):
        spelled = tokenizer.token_text(token_id)
        assert spelled is tokenizer.token_text(token_id)
        assert isinstance(spelled.text, str)
        assert spelled.utf8 is None or spelled.text.startswith("bytes:") or spelled.text.encode() == spelled.utf8
