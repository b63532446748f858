"""Grammars that routers have compiled before their requests come."""

import asyncio
import threading

import pytest

from rayinfer.errors import EngineDead, InvalidParameter
from rayinfer.grammars.compiler import GrammarCompiler, TokenizerFile
from rayinfer.grammars.spec import StructuredOutputsParams
from support.services.async_engines import TIMEOUT_S, running
from support.structured.byte_tokenizer import byte_tokenizer_json

SPEC = StructuredOutputsParams(regex="[a-z]+")
BROKEN = StructuredOutputsParams(regex="(")


def compiler_of(read=lambda: TokenizerFile(byte_tokenizer_json(), ())):
    return GrammarCompiler(read, 257, [256])


async def test_a_compiled_grammar_is_there_for_its_requests():
    grammars = compiler_of()
    async with running(grammars=grammars) as engine:
        await engine.compile_grammar(SPEC, "r")
        assert grammars.has(SPEC)
        for _ in range(2):
            with pytest.raises(InvalidParameter, match="regex"):
                await engine.compile_grammar(BROKEN, "r")
        assert engine.is_alive


async def test_an_engine_without_grammars_refuses_them():
    async with running() as engine:
        with pytest.raises(InvalidParameter, match="has no structured_outputs"):
            await engine.compile_grammar(SPEC, "r")


async def test_an_engine_that_is_shut_down_compiles_nothing():
    may_read = threading.Event()

    def read():
        may_read.wait(TIMEOUT_S)
        return TokenizerFile(byte_tokenizer_json(), ())

    async with running(grammars=compiler_of(read)) as engine:
        first, second = (asyncio.ensure_future(engine.compile_grammar(spec, "r")) for spec in (SPEC, BROKEN))
        await asyncio.sleep(0)  # both are queued
        await asyncio.wait_for(engine.shutdown(), TIMEOUT_S)
        may_read.set()
        for compiling in (first, second):
            with pytest.raises(EngineDead):
                await asyncio.wait_for(compiling, TIMEOUT_S)
        with pytest.raises(EngineDead):
            await engine.compile_grammar(SPEC, "r")
