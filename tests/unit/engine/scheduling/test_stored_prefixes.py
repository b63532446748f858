"""Engines without a model that share a machine's block store; a wrong block shows as a WrongPlan or another token."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.errors import ConfigError
from rayinfer.kv_store.file_format import FileHeader, FileLayout
from rayinfer.kv_store.slot_file import SlotFile
from rayinfer.kv_store.store import KVBlockStore
from rayinfer.protocols import Sleep, Wake
from support.fakes.fake_executor import INVALID, drive, expected_tokens, mixed_answer, numbers

BLOCK_BYTES = 4 * 3 * 8  # of four tokens in the fake executor


def store_at(folder, num_slots=64, num_disk_slots=0, kind=KVBlockStore):
    """Make the function that opens the store in a folder."""

    def open_tier(name, slots):
        layout = FileLayout(block_bytes=BLOCK_BYTES, num_slots=slots)
        return SlotFile(folder / f"{name}.kv", FileHeader(identity=b"i" * 32, layout=layout, label="fake"))

    def open_store():
        return kind(open_tier("memory", num_slots), open_tier("disk", num_disk_slots) if num_disk_slots else None)

    return open_store


class HeldStore(KVBlockStore):
    """A store whose loads wait until they are released."""

    released = threading.Event()

    def load(self, *arguments):
        self.released.wait(10)
        return super().load(*arguments)


def ask(driven, name, prompt, **settings):
    """Run one request to its end; returns how many prompt tokens it did not compute."""
    driven.add(name, prompt, **settings)
    driven.run()
    assert driven.tokens[name] == expected_tokens(prompt, 4)
    return driven.ends[name].num_cached_tokens


def hits(driven):
    return driven.engine.stats.kv_store.memory_hit_tokens_total


def test_an_engine_finds_what_another_has_computed_and_one_that_starts_later_too(tmp_path):
    first, second = (drive(open_store=store_at(tmp_path)) for _ in range(2))
    assert ask(first, "a", numbers(30)) == 0
    assert ask(second, "a", numbers(30)) == 28
    assert (hits(second), second.executor.num_tokens_computed) == (28, 2 + 3)
    for driven in (first, second):
        driven.engine.exit()
    third = drive(open_store=store_at(tmp_path))
    assert ask(third, "b", [*numbers(30)[:18], 50, 51]) == 16
    third.engine.exit()


def test_outputs_are_stored_as_prompts_are(tmp_path):
    first, second = (drive(open_store=store_at(tmp_path)) for _ in range(2))
    ask(first, "a", numbers(14))
    answered = [*numbers(14), *first.tokens["a"]]
    assert ask(second, "b", [*answered, 9, 9]) == 16


def test_tenants_salts_and_adapters_share_nothing(tmp_path):
    first, second = (drive(open_store=store_at(tmp_path)) for _ in range(2))
    ask(first, "a", numbers(30), tenant="t", cache_salt="s", adapter="l")
    assert ask(second, "b", numbers(30)) == 0
    assert ask(second, "c", numbers(30), tenant="u", cache_salt="s", adapter="l") == 0
    assert ask(second, "d", numbers(30), tenant="t", cache_salt="s") == 0
    assert ask(second, "e", numbers(30), tenant="t", cache_salt="s", adapter="l") == 28
    assert hits(second) == 28


def test_blocks_that_memory_has_evicted_come_from_the_disk(tmp_path):
    open_store, stores = store_at(tmp_path, num_slots=8, num_disk_slots=64), []
    first = drive(open_store=lambda: stores.append(open_store()) or stores[-1])
    for start in range(4):
        ask(first, f"{start}", numbers(30, start))
        assert stores[0].flush(10)
    second = drive(open_store=open_store)
    assert ask(second, "again", numbers(30, 0)) == 28
    stats = second.engine.stats.kv_store
    assert stats.memory_hit_tokens_total + stats.disk_hit_tokens_total == 28
    assert stats.disk_hit_tokens_total >= 24
    assert first.engine.stats.kv_store.evicted_blocks_total > 0


def test_requests_of_one_prefix_wait_for_one_load(tmp_path):
    first, second = (drive(open_store=store_at(tmp_path)) for _ in range(2))
    ask(first, "a", numbers(30))
    for name in ("b", "c", "d"):
        second.add(name, numbers(30))
    second.run()
    assert all(second.tokens[name] == expected_tokens(numbers(30), 4) for name in ("b", "c", "d"))
    assert hits(second) == 28


def test_other_requests_run_while_one_waits_for_a_load_and_it_may_end_meanwhile(tmp_path):
    HeldStore.released.clear()
    ask(drive(open_store=store_at(tmp_path)), "a", numbers(30))
    driven = drive(open_store=store_at(tmp_path, kind=HeldStore))
    driven.add("loads", numbers(30))
    driven.add("aborted", numbers(30))
    driven.add("late", numbers(30), timeout_s=5.0)
    driven.step()
    driven.add("other", numbers(9, 40))
    while "other" not in driven.ends:
        driven.step()
    assert driven.engine.stats.num_waiting == 3
    driven.abort("aborted")
    driven.clock.now += 6
    driven.step()
    HeldStore.released.set()
    driven.run()
    assert driven.reasons() == {"loads": "length", "aborted": "abort", "late": "timeout", "other": "length"}
    assert driven.tokens["loads"] == expected_tokens(numbers(30), 4)


def test_requests_do_not_wait_for_ever_for_a_load(tmp_path):
    HeldStore.released.clear()
    ask(drive(open_store=store_at(tmp_path)), "a", numbers(30))
    driven = drive(open_store=store_at(tmp_path, kind=HeldStore))
    driven.add("a", numbers(30))
    driven.step()
    driven.clock.now += 11
    while "a" not in driven.ends:
        driven.step()
    assert driven.ends["a"].num_cached_tokens == 0
    HeldStore.released.set()
    driven.run()


def test_a_preempted_request_is_loaded_again(tmp_path):
    driven = drive(num_blocks=16, max_num_seqs=1, open_store=store_at(tmp_path))
    driven.add("low", numbers(29), max_tokens=8, priority=5, trace=True)
    driven.step()
    driven.settle()
    driven.add("high", numbers(60, 50), max_tokens=1)  # takes all blocks, cached ones too
    driven.run()
    assert driven.tokens["low"] == expected_tokens(numbers(29), 8)
    assert driven.executor.num_tokens_computed < 29 + 60 + 29
    events = {event.name: event.details for event in driven.ends["low"].trace}
    assert events["loaded"]["tokens"] == hits(driven) > 0


def test_a_request_that_needs_all_blocks_waits_for_those_that_are_being_stored(tmp_path):
    driven = drive(num_blocks=12, open_store=store_at(tmp_path))
    for start in range(4):
        driven.add(f"{start}", numbers(44, start), max_tokens=3)
    driven.run()
    assert driven.reasons() == dict.fromkeys("0123", "length")


def test_blocks_that_are_not_finite_are_never_stored(tmp_path):
    bad = numbers(30)
    spoilt = drive(
        budget=8,  # so that blocks are written before the first token shows it
        open_store=store_at(tmp_path),
        answer=lambda context: INVALID if context[:30] == bad else mixed_answer(context),
    )
    spoilt.add("bad", bad)
    spoilt.run()
    assert spoilt.reasons() == {"bad": "error"}
    assert spoilt.engine.stats.kv_store.stored_blocks_total == 0
    assert ask(drive(open_store=store_at(tmp_path)), "good", bad) == 0


def test_the_logprobs_of_a_prompt_need_no_store(tmp_path):
    first, second = (drive(open_store=store_at(tmp_path)) for _ in range(2))
    ask(first, "a", numbers(30))
    second.add("scored", numbers(30), prompt_logprobs=0)
    second.run()
    assert len(second.prompt_logprobs["scored"]) == 30
    assert hits(second) == 0


@pytest.mark.parametrize(("level", "num_loaded"), [(0, 0), (1, 28), (2, 28 + 28)])
def test_loads_and_offers_outlast_a_sleep(level, num_loaded, tmp_path):
    driven = drive(open_store=store_at(tmp_path))
    ask(driven, "a", numbers(30))
    driven.add("b", numbers(30, 40))
    driven.step()
    driven.engine.control(Sleep(level))
    driven.engine.control(Wake())
    driven.run()
    assert driven.tokens["b"] == expected_tokens(numbers(30, 40), 4)
    assert ask(driven, "c", numbers(30)) == 28
    assert hits(driven) == num_loaded  # level 2 also frees the blocks of the running one
    assert driven.engine.stats.kv_store.stored_blocks_total == 16


def test_an_engine_whose_store_cannot_be_opened_again_goes_on_without(tmp_path):
    openings = [store_at(tmp_path)()]

    def open_once():
        if not openings:
            raise ConfigError("it is gone")
        return openings.pop()

    driven = drive(open_store=open_once)
    ask(driven, "a", numbers(30))
    driven.engine.control(Sleep(2))
    driven.engine.control(Wake())
    assert ask(driven, "b", numbers(30)) == 0
    assert ask(driven, "c", numbers(30)) == 28  # of its own cache
    assert driven.engine.stats.kv_store.stored_blocks_total == 8


def test_offers_of_a_small_pool_are_dropped_and_counted(tmp_path):
    driven = drive(num_blocks=8, open_store=store_at(tmp_path))
    ask(driven, "a", numbers(25))
    stats = driven.engine.stats.kv_store
    assert stats.dropped_blocks_total >= 4
    assert stats.stored_blocks_total <= 3


class Guesses:
    """A drafter whose drafts are one right token and wrong ones: what is written for these is to be nowhere."""

    def propose(self, rows):
        return [[*expected_tokens(each.token_ids.tolist(), 1), 1, 1, 1][: each.limit] for each in rows]


ASYNC = {"supports_async_scheduling": True}
DRAFTS = {"drafter": Guesses(), "speculation": 3}
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the engine
        st.integers(0, 3),  # the prompt
        st.integers(2, 40),  # its length
        st.integers(0, 1),  # the tenant
        st.sampled_from(["add", "add", "add", "step", "restart", "spoil", "sleep"]),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(REQUESTS, st.integers(3, 40), st.booleans(), st.sampled_from([{}, ASYNC, DRAFTS]), st.sampled_from([0, 12]))
def test_engines_that_share_a_store_answer_as_ones_alone(
    tmp_path_factory, requests, num_slots, has_disk, kind, num_offload_blocks
):
    folder = tmp_path_factory.mktemp("store")
    open_store = store_at(folder, num_slots, 2 * num_slots if has_disk else 0)
    settings_of_engines = {
        "num_blocks": 16,
        "max_num_seqs": 3,
        "budget": 24,
        "open_store": open_store,
        **kind,
        "num_offload_blocks": num_offload_blocks,
    }
    engines = [drive(**settings_of_engines) for _ in range(3)]
    wanted = [{} for _ in engines]
    for index, (engine, start, length, tenant, action) in enumerate(requests):
        driven = engines[engine]
        if action == "add":
            prompt = numbers(length, start)
            driven.add(f"{index}", prompt, tenant=f"{tenant}", priority=length % 3)
            wanted[engine][f"{index}"] = expected_tokens(prompt, 4)
        elif action == "restart":
            driven.run()
            assert driven.tokens == wanted[engine]
            driven.engine.exit()
            engines[engine], wanted[engine] = drive(**settings_of_engines), {}
        elif action == "spoil":
            spoil(folder, length)
        elif action == "sleep" and kind is not ASYNC:
            driven.engine.control(Sleep(tenant + 1))
            driven.engine.control(Wake())
        driven.step()
    for driven, tokens in zip(engines, wanted, strict=True):
        driven.run()
        assert driven.tokens == tokens
        driven.engine.exit()


def spoil(folder, seed):
    """Overwrite some bytes of blocks and records."""
    for path in folder.glob("*.kv"):
        draws = random.Random(seed)
        with path.open("r+b") as file:
            for _ in range(20):
                file.seek(draws.randrange(4096, path.stat().st_size))
                file.write(draws.randbytes(3))
