"""Grammars are compiled by one engine, once, before requests with them are admitted."""

import asyncio

import pytest

from rayinfer.errors import EngineDead, InvalidParameter, RequestFailed
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.routing.canary.versioned_generator import VersionedGenerator
from support.fakes.fake_service import Service, running
from support.services.polling import until

REFUSAL = "structured_outputs.regex: too much (limit max_lexer_states: 20000)"


def spec_of(number):
    return StructuredOutputsParams(regex=f"a{number}")


@pytest.fixture
async def service(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        yield service


async def test_a_grammar_is_compiled_once(service):
    assert await service.dispatcher.compile_grammar(spec_of(0))
    assert await service.dispatcher.compile_grammar(spec_of(0))
    assert await service.dispatcher.compile_grammar(spec_of(1))
    assert service.engines[0].compiled == [spec_of(0), spec_of(1)]


async def test_a_refused_grammar_is_remembered_and_tried_on_no_other_engine(service):
    service.add_engine()
    for engine in service.engines:
        engine.grammar_error = InvalidParameter(REFUSAL, "structured_outputs")
    for _ in range(3):
        with pytest.raises(InvalidParameter) as raised:
            await service.dispatcher.compile_grammar(spec_of(0))
        assert (raised.value.message, raised.value.param) == (REFUSAL, "structured_outputs")
    assert sum(len(engine.compiled) for engine in service.engines) == 1
    assert len(service.dispatcher.engines.available()) == 2  # a refusal is no failure of an engine


async def test_grammars_are_compiled_one_after_the_other(service):
    engine = service.engines[0]
    engine.grammar_may_compile.clear()
    checks = [asyncio.ensure_future(service.dispatcher.compile_grammar(spec_of(number))) for number in (0, 1, 0, 2)]
    await until(lambda: engine.compiled)
    checks[-1].cancel()  # its client has gone: it is never sent
    for _ in range(5):
        await asyncio.sleep(0)
    assert engine.compiled == [spec_of(0)]
    engine.grammar_may_compile.set()
    assert await asyncio.gather(*checks[:-1]) == [True, True, True]
    assert engine.compiled == [spec_of(0), spec_of(1)]


async def test_a_client_that_leaves_does_not_hold_up_the_next_grammar(service):
    engine = service.engines[0]
    engine.grammar_may_compile.clear()
    check = asyncio.ensure_future(service.dispatcher.compile_grammar(spec_of(0)))
    await until(lambda: engine.compiled)
    check.cancel()
    await asyncio.wait((check,))
    engine.grammar_may_compile.set()
    assert await service.dispatcher.compile_grammar(spec_of(1))
    assert engine.compiled == [spec_of(0), spec_of(1)]


async def test_without_an_engine_nothing_is_known_of_a_grammar(tokenizer):
    async with running(Service(tokenizer, 0)) as service:
        assert not await service.dispatcher.compile_grammar(spec_of(0))
        service.add_engine()
        assert await service.dispatcher.compile_grammar(spec_of(0))
        assert service.engines[0].compiled == [spec_of(0)]


async def test_a_grammar_whose_engine_is_lost_is_left_to_the_engine_of_its_request(service):
    service.add_engine()
    for engine in service.engines:
        engine.grammar_may_compile.clear()
    check = asyncio.ensure_future(service.dispatcher.compile_grammar(spec_of(0)))
    await until(lambda: any(engine.compiled for engine in service.engines))
    lost = next(number for number, engine in enumerate(service.engines) if engine.compiled)
    service.engines[lost].die(EngineDead("killed"))
    assert await asyncio.wait_for(check, 10.0)
    assert sum(len(engine.compiled) for engine in service.engines) == 1


async def test_verdicts_begin_anew_when_an_engine_joins(service):
    service.engines[0].grammar_error = InvalidParameter(REFUSAL, "structured_outputs")
    with pytest.raises(InvalidParameter):
        await service.dispatcher.compile_grammar(spec_of(0))
    service.engines[0].grammar_error = None
    service.add_engine()
    assert await service.dispatcher.compile_grammar(spec_of(0))


async def test_a_failure_to_compile_is_no_verdict(service):
    service.engines[0].grammar_error = RequestFailed("the engine failed")
    with pytest.raises(RequestFailed):
        await service.dispatcher.compile_grammar(spec_of(0))
    service.engines[0].grammar_error = None
    assert await service.dispatcher.compile_grammar(spec_of(0))


async def test_grammars_are_compiled_by_the_stable_version(service):
    generator = VersionedGenerator("m", service.dispatcher, service.metrics)
    assert await generator.compile_grammar(spec_of(0))
    assert service.engines[0].compiled == [spec_of(0)]
