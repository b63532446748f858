"""Real engines whose stores are apart: prefixes are fetched, and long prompts handed over, with the same tokens."""

import asyncio

import pytest

from rayinfer.protocols import GenerationRequest
from rayinfer.routing.roles.kv_sources import MIN_FETCHED_TOKENS
from rayinfer.routing.roles.settings import RoleSettings
from rayinfer.sampling_params import SamplingParams
from support.services.polling import until
from support.services.transfer_fleet import transfer_fleet
from support.tiny_models.tiny_checkpoints import make_tiny_llama

PREFIX = [5 + 7 * i % 370 for i in range(MIN_FETCHED_TOKENS + 50)]
PROMPTS = [[*PREFIX, 4, number] for number in range(9, 13)]
SAMPLED = {"temperature": 0.9, "seed": 11, "repetition_penalty": 1.2}
ROLES = RoleSettings(prefill=1, decode=1, min_prompt_tokens=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Choose the machine, by its shared memory, of engines that are built from now on."""

    def choose(name):
        monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(tmp_path / name))

    return choose


async def undisturbed(folder, machine):
    """What the prompts give on one engine without a store."""
    async with transfer_fleet(folder) as fleet:
        fleet.add("a", kv_store_gib=None, kv_transfer=False, enable_prefix_caching=False)
        return await answers(fleet)


async def answers(fleet):
    return [
        await fleet.ask(PROMPTS[0], max_tokens=150),  # so many that it does not end with the engine's first message
        await fleet.ask(PROMPTS[1], **SAMPLED),
        await fleet.ask(PROMPTS[2], n=3, **SAMPLED),
        await fleet.ask(PREFIX[:40]),
    ]


async def test_blocks_cross_when_the_engine_that_has_them_is_full(folder, machine):
    wanted = await undisturbed(folder, machine)
    async with transfer_fleet(folder) as fleet:
        machine("one")
        fleet.add("a", max_num_seqs=1)
        assert await fleet.ask(PROMPTS[0], max_tokens=150) == wanted[0]
        await fleet.settled(0)
        machine("two")
        second = fleet.add("b")
        await until(lambda: all(link.stats.credits.num_requests for link in fleet.router.engines.links.values()))
        full = [asyncio.ensure_future(fleet.ask([*PREFIX, 7, 7], max_tokens=120)) for _ in range(3)]
        asked = [asyncio.ensure_future(fleet.ask(PROMPTS[1], **SAMPLED)) for _ in range(3)]
        assert await asyncio.gather(*asked) == [wanted[1]] * 3
        await asyncio.gather(*full)
        assert fleet.transfers[1].engine.stats.fetched_blocks_total >= MIN_FETCHED_TOKENS // 8
        assert fleet.transfers[0].engine.stats.sent_blocks_total >= MIN_FETCHED_TOKENS // 8
        assert second.stats.kv_store.memory_hit_tokens_total >= MIN_FETCHED_TOKENS
        assert fleet.count('rayinfer_kv_transfer_blocks_total{engine="b",event="fetched"') > 0


@pytest.mark.parametrize("machines", [("one", "one"), ("one", "two")], ids=["one machine", "two machines"])
async def test_long_prompts_are_handed_over_with_the_same_tokens(folder, machine, machines):
    wanted = await undisturbed(folder, machine)
    async with transfer_fleet(folder, ROLES) as fleet:
        for name, where in zip("ab", machines, strict=True):
            machine(where)
            fleet.add(name)
        assert await answers(fleet) == wanted
        number = 20  # a stream that ends with the engine's first message, as on a busy core, is not handed over
        while not fleet.count("rayinfer_handovers_total") and (number := number + 1) < 40:
            await fleet.ask([number, *PREFIX], max_tokens=150)
        assert fleet.count("rayinfer_handovers_total") >= 1
        assert fleet.count("rayinfer_migrations_total") == 0
        assert fleet.engines[1].stats.kv_store.memory_hit_tokens_total >= len(PREFIX) - 8
        assert fleet.transfers[1].engine.stats.failed_fetches_total == 0
        assert bool(fleet.transfers[1].engine.stats.fetched_blocks_total) == (machines[0] != machines[1])


@pytest.mark.parametrize("dies", ["prefill", "decode"])
async def test_a_death_on_either_side_falls_back_to_computing(folder, machine, dies):
    wanted = await undisturbed(folder, machine)
    async with transfer_fleet(folder, ROLES) as fleet:
        for name, where in zip("ab", ("one", "two"), strict=True):
            machine(where)
            fleet.add(name)
        request = GenerationRequest(
            request_id="x",
            prompt_token_ids=PROMPTS[0],
            sampling_params=SamplingParams(max_tokens=150, temperature=0.0, ignore_eos=True),
        )
        stream = fleet.router.generate(request)
        tokens = list((await anext(stream)).outputs[0].token_ids)
        await fleet.engines[dies == "decode"].shutdown()
        if dies == "prefill":
            await asyncio.to_thread(fleet.transfers[0].close)
        async for output in stream:
            tokens += output.outputs[0].token_ids
        assert [tokens] == wanted[0]
        assert await fleet.ask(PROMPTS[1], **SAMPLED) == wanted[1]  # the engine that is left computes all
