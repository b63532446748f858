import gc
import os
import queue
import threading

import pytest
from llguidance import LLMatcher

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compilation import NICENESS, CompilationThreads
from rayinfer.grammars.compiler import MAX_LATEST_GRAMMARS, MAX_REFUSED_GRAMMARS, GrammarCompiler, TokenizerFile
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


def test_a_refused_grammar_is_not_compiled_again(compiler):
    def run(work):
        ran.append(work)
        return work()

    ran = []
    for _ in range(3):
        with pytest.raises(InvalidParameter, match="regex"):
            compiler.compile(StructuredOutputsParams(regex="("), run)
    assert len(ran) == 1
    for number in range(MAX_REFUSED_GRAMMARS):
        with pytest.raises(InvalidParameter, match="structural_tag"):
            compiler.compile(StructuredOutputsParams(structural_tag={"structures": [], "number": number}), run)
    with pytest.raises(InvalidParameter, match="regex"):
        compiler.compile(StructuredOutputsParams(regex="("), run)
    assert len(ran) == 2  # of the refused ones, the latest are kept


def test_limits_behind_the_forced_text_are_met_whatever_tokens_spell_it():
    compiler = GrammarCompiler(lambda: TokenizerFile(byte_tokenizer_json(['{"']), ()), 258, [256])
    schema = {"type": "object", "properties": {f"p{index}": {} for index in range(400)}}
    with pytest.raises(InvalidParameter, match="max_items_in_row: 1000"):
        compiler.compile(StructuredOutputsParams(json=schema))
    compiler.compile(StructuredOutputsParams(json={"type": "object", "properties": {"a": {}}}))
    compiler.close()


def test_the_tokenizer_is_read_before_the_first_grammar_comes():
    reads = queue.SimpleQueue()

    def read():
        reads.put(threading.current_thread())
        return TokenizerFile(byte_tokenizer_json(), ())

    compiler = GrammarCompiler(read, 257, [256])
    compiler.prepare()
    assert reads.get(timeout=10) is not threading.current_thread()
    compiler.compile(spec_of(0))
    assert reads.empty()
    compiler.close()


def test_a_tokenizer_that_cannot_be_read_is_reported_to_the_first_grammar():
    def read():
        raise InvalidParameter("no tokenizer.json", "structured_outputs")

    compiler = GrammarCompiler(read, 257, [256])
    compiler.prepare()
    with pytest.raises(InvalidParameter, match=r"no tokenizer\.json"):
        compiler.compile(spec_of(0))
    compiler.close()


def test_only_what_needs_no_lock_of_the_interpreter_is_done_at_low_priority(compiler):
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    threads = CompilationThreads("test")
    here = niceness()
    assert threads.submit(lambda: (niceness(), threads.run_low(niceness))).result() == (here, NICENESS)
    threads.close()

    def run(work):
        matcher, problem = work()
        ran.append((type(matcher), problem))
        return matcher, problem

    ran = []
    compiler.compile(spec_of(1), run)
    with pytest.raises(InvalidParameter, match="regex"):
        compiler.compile(StructuredOutputsParams(regex="("), run)
    assert [(kind, problem is None) for kind, problem in ran] == [(LLMatcher, True), (LLMatcher, False)]


def test_grammars_are_compiled_beside_the_caller(compiler):
    assert compiler.start(spec_of(3)).result() is compiler.compile(spec_of(3))
    with pytest.raises(InvalidParameter, match="regex"):
        compiler.start(StructuredOutputsParams(regex="(")).result()
