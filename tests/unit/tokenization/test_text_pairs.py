"""Pairs of texts against the library's own templates and truncation."""

import pytest
from tokenizers import processors

from rayinfer.errors import InvalidParameter
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.tokenization.truncation import Truncation
from support.tiny_models.tiny_tokenizers import byte_level

TEXTS = ("", "one", "one two three", "The quick brown fox jumps over the lazy dog.")
BERT = processors.TemplateProcessing(
    single="<s>:0 $A:0 </s>:0",
    pair="<s>:0 $A:0 </s>:0 $B:1 </s>:1",
    special_tokens=[("<s>", 0), ("</s>", 1)],
)
ROBERTA = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> </s> $B:0 </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
)


@pytest.mark.parametrize("template", [BERT, ROBERTA, None])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("num_tokens", [None, 4, 5, 8, 9, 17])
def test_pairs_are_those_of_the_library(template, side, num_tokens):
    backend, other = byte_level(), byte_level()
    if template is not None:
        backend.post_processor = other.post_processor = template
    if num_tokens is not None:
        other.enable_truncation(num_tokens, strategy="longest_first", direction=side)
    truncation = None if num_tokens is None else Truncation(num_tokens, side)
    tokenizer = Tokenizer(backend)
    for first in TEXTS:
        for second in TEXTS:
            assert (
                tokenizer.encode_pair(first, second, truncation=truncation).token_ids == other.encode(first, second).ids
            ), (first, second)


@pytest.mark.parametrize(("template", "num_special"), [(BERT, 2), (ROBERTA, 3), (None, 0)])
def test_the_first_text_ends_where_the_second_begins(template, num_special):
    backend = byte_level()
    if template is not None:
        backend.post_processor = template
    tokenizer = Tokenizer(backend)
    num_one = len(tokenizer.encode("one two", add_special_tokens=False))
    assert tokenizer.encode_pair("one two", "three").num_first_tokens == num_one + num_special


def test_a_half_of_a_character_is_refused():
    with pytest.raises(InvalidParameter, match="lone surrogate"):
        Tokenizer(byte_level()).encode_pair("a", "\ud800")
