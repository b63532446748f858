import gc

import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compiler import MAX_LATEST_GRAMMARS, GrammarCompiler, TokenizerFile
from rayinfer.grammars.spec import StructuredOutputsParams
from support.structured.byte_tokenizer import byte_tokenizer_json


def spec_of(number):
    return StructuredOutputsParams(regex=f"a{number}")


@pytest.fixture
def compiler():
    compiler = GrammarCompiler(lambda: TokenizerFile(byte_tokenizer_json(), ()), 257, [256])
    yield compiler
    compiler.close()


def test_the_latest_grammars_stay_compiled(compiler):
    for number in range(MAX_LATEST_GRAMMARS + 1):
        compiler.compile(spec_of(number))
    gc.collect()
    assert [compiler.has(spec_of(number)) for number in (0, 1, MAX_LATEST_GRAMMARS)] == [False, True, True]


def test_a_grammar_in_use_is_not_displaced(compiler):
    held = compiler.compile(spec_of(0))
    for number in range(1, MAX_LATEST_GRAMMARS + 5):
        compiler.compile(spec_of(number))
    assert compiler.has(spec_of(0))
    assert compiler.compile(spec_of(0)) is held
    del held
    for number in range(MAX_LATEST_GRAMMARS):
        compiler.compile(spec_of(100 + number))
    gc.collect()
    assert not compiler.has(spec_of(0))


def test_equal_grammars_are_compiled_once_and_matched_apart(compiler):
    assert compiler.compile(spec_of(1)) is compiler.compile(spec_of(1))
    one, other = compiler.matcher(spec_of(1)), compiler.matcher(spec_of(1))
    one.consume_token(ord("a"))
    assert one.compute_bitmask() != other.compute_bitmask()


def test_grammars_are_compiled_beside_the_caller(compiler):
    assert compiler.start(spec_of(3)).result() is compiler.compile(spec_of(3))
    with pytest.raises(InvalidParameter, match="regex"):
        compiler.start(StructuredOutputsParams(regex="(")).result()
