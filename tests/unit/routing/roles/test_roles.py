"""Prompts that are long go to prefill engines, and their streams to decode engines with the first token."""

import asyncio

import pytest

from rayinfer.errors import ConfigError, EngineDead
from rayinfer.outputs import Credits, EngineStats
from rayinfer.protocols import KVAddress, KVSource
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.roles.settings import RoleSettings, prefill_engines
from support.fakes.fake_engine_client import FakeEngineClient
from support.fakes.fake_service import Service, running
from support.services.polling import until

LONG, SHORT = "word " * 40, "hi"
ROLES = RoleSettings(prefill=1, decode=1, min_prompt_tokens=32)


class ServiceWithRoles(Service):
    """Engines that serve blocks; engine-0 has the role prefill."""

    def __init__(self, tokenizer, num_engines, *, machines=(), roles=ROLES):
        super().__init__(tokenizer, 0)
        self.dispatcher = Dispatcher(
            "m", tokenizer, self.metrics, router_id="router-1", traces=self.traces, roles=roles
        )
        for number in range(num_engines):
            engine = FakeEngineClient(max_model_len=1000)
            self.engines.append(engine)
            machine = machines[number] if machines else "one"
            address = machine and KVAddress(store_id=machine, host="10.0.0.9", port=7, key=b"k")
            self.dispatcher.engines.add(f"engine-{number}", engine, engine.description, address or None)


def read(stream):
    return asyncio.ensure_future(anext(stream))


async def first_token(service, prompt=LONG, engine=0, **settings):
    stream = service.open("a", prompt, **settings)
    reading = read(stream)
    await until(lambda: "a/0" in service.engines[engine].submitted_ids)
    service.say("a/0", "X", engine=engine)
    assert (await reading).outputs[0].text == "X"
    return stream


async def test_a_long_prompt_is_computed_by_one_engine_and_continued_by_the_other(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        stream = await first_token(service, trace=True)
        await until(lambda: service.engines[0].aborted == ["a/0"] and service.engines[1].submitted)
        (sent,) = service.engines[1].submitted
        assert (sent.request_id, sent.output_token_ids) == ("a/0@1", tokenizer.encode("X"))
        assert sent.kv_source.num_blocks == len([*sent.prompt_token_ids, 0]) // 16
        assert (sent.kv_source.host, sent.kv_source.wait_s > 0) == ("", True)  # they share a store
        service.say("a/0@1", "Y", "length", engine=1)
        assert (await anext(stream)).outputs[0].text == "Y"
        assert service.metric('rayinfer_handovers_total{model_name="m"}') == 1
        assert service.metric('rayinfer_migrations_total{model_name="m"}') == 0
        assert [details["reason"] for name, details in service.trace() if name == "migrated"] == ["prompt computed"]


async def test_blocks_of_another_machine_come_over_tcp(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2, machines=("one", "two"))) as service:
        await first_token(service)
        await until(lambda: service.engines[1].submitted)
        source = service.engines[1].submitted[0].kv_source
        assert (source.host, source.port, source.key) == ("10.0.0.9", 7, b"k")


async def test_short_prompts_go_to_decode_engines_alone(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        await first_token(service, SHORT, engine=1)
        assert service.engines[0].submitted == []
        assert service.engines[1].submitted[0].kv_source is None


async def test_a_prompt_that_a_decode_engine_has_cached_stays_there(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        hashes = []
        service.dispatcher.engines.prefixes.update("engine-1", hashes, [])
        stream = await first_token(service)
        await until(lambda: service.engines[1].submitted)  # its blocks are expected there from now on
        service.say("a/0@1", "Y", "length", engine=1)
        await anext(stream)
        reading = read(service.open("b", LONG))
        await until(lambda: "b/0" in service.engines[1].submitted_ids)
        service.say("b/0", "Z", "length", engine=1)
        assert (await reading).finished


@pytest.mark.parametrize("dies", [0, 1])
async def test_the_engine_that_is_left_does_both(tokenizer, dies):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        service.engines[dies].die(EngineDead("gone"))
        await until(lambda: len(service.dispatcher.engines.names) == 1)
        stream = await first_token(service, engine=1 - dies)
        service.say("a/0", "Y", "length", engine=1 - dies)
        assert (await anext(stream)).finished
        assert len(service.engines[1 - dies].submitted) == 1


async def test_a_stream_whose_decode_engine_dies_continues_on_what_is_left(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        stream = await first_token(service)
        await until(lambda: service.engines[1].submitted)
        service.engines[1].die(EngineDead("gone"))
        reading = read(stream)
        await until(lambda: "a/0@2" in service.engines[0].submitted_ids)
        service.say("a/0@2", "Y", "length")
        assert (await reading).outputs[0].text == "Y"


async def test_a_prompt_whose_prefill_engine_dies_is_computed_anew(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        reading = read(service.open("a", LONG))
        await until(lambda: service.engines[0].submitted)
        service.engines[0].die(EngineDead("gone"))
        await until(lambda: "a/0@1" in service.engines[1].submitted_ids)
        service.say("a/0@1", "Y", "length", engine=1)
        assert (await reading).finished


async def test_a_stream_stays_where_no_decode_engine_has_credits(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        service.engines[1].say(stats=EngineStats(credits=Credits(num_requests=1)))
        await until(lambda: service.dispatcher.engines.links["engine-1"].stats.credits.num_requests == 1)
        reading = read(service.open("full", SHORT))
        await until(lambda: service.engines[1].submitted)
        stream = await first_token(service)
        service.say("a/0", "Y", "length")
        assert (await anext(stream)).finished
        assert service.engines[1].submitted_ids == ["full/0"]
        reading.cancel()


async def test_engines_without_blocks_to_serve_have_no_roles(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2, machines=("", ""))) as service:
        stream = await first_token(service)
        reading = read(stream)
        await asyncio.sleep(0.05)
        assert service.engines[1].submitted == []  # it stays where it began
        service.say("a/0", "Y", "length")
        assert (await reading).finished


async def test_all_choices_are_handed_over_once_all_have_begun(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2)) as service:
        stream = service.open("a", LONG, n=2)
        reading = read(stream)
        await until(lambda: len(service.engines[0].submitted) == 2)
        service.say("a/0", "X")
        await reading
        assert service.engines[1].submitted == []
        reading = read(stream)
        service.say("a/1", "X")
        await reading
        await until(lambda: service.engines[1].submitted_ids == ["a/0@1", "a/1@1"])


async def test_a_prefix_on_another_machine_is_named_as_a_source(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2, machines=("one", "two"), roles=None)) as service:
        prompt, engines = "word " * 200, service.dispatcher.engines
        stream = await first_token(service, prompt)
        service.engines[0].say(stats=EngineStats(credits=Credits(num_requests=1)))
        await until(lambda: engines.links["engine-0"].stats.credits.num_requests == 1)
        reading = read(service.open("b", prompt))
        await until(lambda: service.engines[1].submitted)
        source = service.engines[1].submitted[0].kv_source
        assert isinstance(source, KVSource)
        assert (source.port, source.wait_s, source.num_blocks * 16 > 256) == (7, 0.0, True)
        assert service.engines[0].submitted[0].kv_source is None
        reading.cancel()
        await stream.aclose()


async def test_engines_of_one_machine_are_no_sources_of_each_other(tokenizer):
    async with running(ServiceWithRoles(tokenizer, 2, roles=None)) as service:
        prompt, engines = "word " * 200, service.dispatcher.engines
        stream = await first_token(service, prompt)
        service.engines[0].say(stats=EngineStats(credits=Credits(num_requests=1)))
        await until(lambda: engines.links["engine-0"].stats.credits.num_requests == 1)
        reading = read(service.open("b", prompt))
        await until(lambda: service.engines[1].submitted)
        assert service.engines[1].submitted[0].kv_source is None
        reading.cancel()
        await stream.aclose()


def test_every_router_gives_the_same_engines_the_role_and_leaves_one_to_decode():
    two = RoleSettings(prefill=2, decode=1)
    assert prefill_engines(["c", "a", "b"], two) == {"a", "b"}
    assert prefill_engines(["b", "a"], two) == {"a"}
    assert prefill_engines(["a"], two) == prefill_engines([], two) == prefill_engines(["a", "b"], None) == frozenset()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prefill", "is their form"),
        ("prefill=1", "decode: Field required"),
        ("prefill=0,decode=1", "greater than or equal to 1"),
        ("prefill=1,decode=1,encode=1", "encode"),
        ("prefill=x,decode=1", "valid integer"),
    ],
)
def test_wrong_roles_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        RoleSettings.parse(text)
