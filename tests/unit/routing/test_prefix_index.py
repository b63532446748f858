import pytest

from rayinfer.protocols import GenerationRequest, SharedStore
from rayinfer.routing.prefix_groups import PrefixGroups
from rayinfer.routing.prefix_index import EXPECT_S, KEEP_S, PrefixIndex
from rayinfer.routing.preparation import hash_prompt_blocks
from rayinfer.sampling_params import SamplingParams
from support.fakes.virtual_time import FakeClock
from support.kernels.memory_use import held_bytes

CHAIN = [bytes([number]) * 16 for number in range(100)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def index(clock):
    index = PrefixIndex(clock)
    for engine in ("a", "b"):
        index.add_engine(engine)
    return index


def test_each_engine_is_known_for_what_it_has_stored_and_not_removed(index):
    index.update("a", CHAIN[:60], [])
    index.update("b", CHAIN[:7], [])
    assert (index.num_cached("a", CHAIN), index.num_cached("b", CHAIN)) == (60, 7)
    index.update("a", [], CHAIN[20:60])
    assert (index.num_cached("a", CHAIN), index.num_blocks("a")) == (20, 20)
    assert index.num_cached("a", CHAIN[:10]) == 10


@pytest.mark.parametrize("length", range(12))
def test_every_length_of_a_prefix_is_found_exactly(index, length):
    index.update("a", CHAIN[:length], [])
    assert index.num_cached("a", CHAIN[:11]) == min(length, 11)


def test_a_prompt_on_its_way_counts_as_being_there_for_a_while(index, clock):
    index.expect("a", CHAIN)
    assert index.num_cached("a", CHAIN) == 100
    clock.now += 2 * EXPECT_S
    assert index.num_cached("a", CHAIN) == 0


def test_unused_blocks_are_evicted_before_used_ones(index, clock):
    index.update("a", CHAIN, [])
    for _ in range(5):
        clock.now += KEEP_S
        assert index.num_cached("a", CHAIN[:10]) == 10
        index.expect("a", CHAIN[:10])
        clock.now += EXPECT_S * 2
    assert index.num_cached("a", CHAIN) == 10
    clock.now += 2 * KEEP_S
    assert index.num_cached("a", CHAIN) == 0


def test_an_engine_that_is_gone_is_forgotten_and_late_word_of_it_does_no_harm(index):
    index.update("a", CHAIN, [])
    index.remove_engine("a")
    index.update("a", CHAIN, [])
    index.expect("a", CHAIN)
    index.add_engine("a")
    assert index.num_cached("a", CHAIN) == 0


def test_those_that_share_the_longest_prefix_are_found_in_order_of_arrival():
    groups = PrefixGroups()
    empty = held_bytes(groups)
    groups.add("short", CHAIN[:2])
    groups.add("other", [b"x" * 16])
    groups.add("long", [*CHAIN[:5], b"y" * 16])
    groups.add("long too", CHAIN[:6])
    assert list(groups.sharing_most(CHAIN[:3])) == ["long", "long too"]
    assert list(groups.sharing_most(CHAIN[:2])) == ["short", "long", "long too"]
    assert list(groups.sharing_most([b"z" * 16])) == []
    for item in ("long", "long too", "short", "other", "unknown"):
        groups.remove(item)
    assert len(groups) == 0
    assert held_bytes(groups) - empty < 1000  # the empty table


@pytest.mark.parametrize("shared", [1, 2, 5, 11, 23, 47, 70])
def test_a_request_that_shares_a_third_less_is_passed_over(shared):
    groups = PrefixGroups()
    groups.add("less", [*CHAIN[: shared * 2 // 3], b"x" * 16])
    groups.add("most", [*CHAIN[:shared], b"y" * 16])
    groups.add("none", [b"z" * 16])
    assert list(groups.sharing_most(CHAIN)) == ["most"]


def request(tokens, outputs=(), **settings):
    return GenerationRequest(
        request_id="a",
        prompt_token_ids=list(tokens),
        output_token_ids=list(outputs),
        sampling_params=SamplingParams(),
        **settings,
    )


def test_routers_name_blocks_by_all_that_their_contents_depend_on():
    base = hash_prompt_blocks(request(range(40)), 16)
    assert len(base) == 2
    assert hash_prompt_blocks(request(range(33)), 16) == base
    assert not set(hash_prompt_blocks(request(range(40)), 16, 1)) & set(base)
    assert hash_prompt_blocks(request(range(20), range(20, 35)), 16) == base
    for settings in ({"tenant": "t"}, {"cache_salt": "s"}, {"adapter": "x"}):
        assert not set(hash_prompt_blocks(request(range(40), **settings), 16)) & set(base)


def test_a_store_has_what_its_engines_have_had(index, clock):
    for engine, store in (("c", "one"), ("d", "one"), ("e", "other")):
        index.add_engine(engine, SharedStore(store, 1000))
    index.update("c", CHAIN[:60], [])
    assert [index.num_in_store(engine, CHAIN) for engine in "abcde"] == [0, 0, 60, 60, 0]
    assert [index.num_cached(engine, CHAIN) for engine in "cde"] == [60, 0, 0]
    index.update("c", [], CHAIN[:60])
    index.remove_engine("c")
    index.remove_engine("d")
    index.add_engine("f", SharedStore("one", 1000))
    assert index.num_in_store("f", CHAIN) == 60
    clock.now += 3 * KEEP_S
    assert index.num_in_store("f", CHAIN) == 0


def test_a_store_is_known_for_no_more_than_it_can_hold(index):
    index.add_engine("c", SharedStore("small", 50))
    index.update("c", CHAIN[:40], [])
    assert index.num_in_store("c", CHAIN[:40]) == 40
    index.update("c", CHAIN[60:], [])
    index.update("c", CHAIN[40:60], [])
    assert (index.num_in_store("c", CHAIN[:40]), index.num_in_store("c", CHAIN[60:])) == (0, 40)


def test_stores_without_engines_are_forgotten_in_time(index, clock):
    index.add_engine("c", SharedStore("one", 1000))
    index.update("c", CHAIN, [])
    index.remove_engine("c")
    clock.now += 3 * KEEP_S
    index.add_engine("d")
    assert index.num_stores == 0
