"""Several routers and the owner of what they share."""

import asyncio
import contextlib
import time

import pytest

from rayinfer.access.access_control import AccessControl
from rayinfer.access.api_key import KeyLimits
from rayinfer.access.usage import day_of
from rayinfer.errors import AuthenticationFailed, NotReady, QuotaExceeded, RateLimited
from rayinfer.outputs import CompletionOutput, RequestOutput

PROMPT = [1, 2, 3, 4]


def ask(router, secret):
    return router.authenticator.identify({"authorization": f"Bearer {secret}"}, "10.0.0.1")


def output(num_tokens, num_cached=0):
    completion = CompletionOutput(index=0, text="", token_ids=[7] * num_tokens)
    return RequestOutput(request_id="", prompt_token_ids=PROMPT, outputs=[completion], num_cached_tokens=num_cached)


def generate(router, caller, num_tokens):
    with router.admit(caller, "tiny", [PROMPT]) as usage:
        usage.add(0, output(num_tokens, 2))


def usage_of(shared):
    return {(row.key.key_id, row.key.day): tuple(row.usage)[:4] for row in shared.owner.usage_log.rows()}


async def sync(*routers):
    for router in (*routers, *routers):
        await router.synchronize()


async def test_requests_a_minute_count_in_all_routers(key_file, shared, routers, clock):
    secret = key_file.create("alice", limits=KeyLimits(requests_per_minute=10))
    one, two = routers
    await sync(one, two)
    for _ in range(6):
        ask(one, secret)
    await sync(one, two)
    for _ in range(4):
        ask(two, secret)
    with pytest.raises(RateLimited) as limited:
        ask(two, secret)
    assert limited.value.retry_after_s == pytest.approx(6)
    await sync(one, two)
    key = one.authenticator.keys.find(secret)
    assert dict(one.limits.headers(key))[b"x-ratelimit-remaining-requests"] == b"0"
    clock.now_s += 6.01
    await sync(one, two)
    ask(one, secret)
    await sync(one, two)
    with pytest.raises(RateLimited):
        ask(two, secret)


async def test_a_revoked_key_fails_in_every_router_after_one_synchronisation(key_file, shared, routers):
    secrets = [key_file.create(name) for name in ("alice", "bob")]
    await asyncio.gather(*(router.synchronize() for router in routers))
    for router in routers:
        assert [ask(router, secret).tenant for secret in secrets] == ["alice", "bob"]
    key_file.revoke("alice")
    secrets.append(key_file.create("carol"))
    await asyncio.gather(*(router.synchronize() for router in routers))
    for router in routers:
        with pytest.raises(AuthenticationFailed):
            ask(router, secrets[0])
        assert [ask(router, secret).tenant for secret in secrets[1:]] == ["bob", "carol"]


async def test_a_key_that_is_taken_out_of_the_file_while_the_owner_restarts_is_gone(key_file, shared, routers):
    secrets = [key_file.create(name) for name in ("alice", "bob")]
    await routers[0].synchronize()
    key_file.path.write_text(key_file.path.read_text().splitlines()[1] + "\n")
    shared.restart()
    await routers[0].synchronize()
    with pytest.raises(AuthenticationFailed):
        ask(routers[0], secrets[0])
    assert ask(routers[0], secrets[1]).tenant == "bob"


@pytest.mark.parametrize("damage", ["{}\n", None])
async def test_the_last_keys_stay_while_the_file_is_damaged_or_gone(key_file, shared, routers, damage, caplog):
    secret = key_file.create("alice")
    await sync(*routers)
    content = key_file.path.read_text()
    key_file.path.unlink() if damage is None else key_file.path.write_text(damage)
    await sync(*routers)
    assert ask(routers[0], secret).tenant == "alice"
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    key_file.path.write_text(content)
    key_file.revoke("alice")
    await sync(*routers)
    with pytest.raises(AuthenticationFailed):
        ask(routers[0], secret)


async def test_routers_keep_to_their_share_while_the_owner_is_away(key_file, shared, routers, clock):
    secret = key_file.create("alice", limits=KeyLimits(requests_per_minute=10, concurrent_requests=4))
    await sync(*routers)
    shared.is_away = True
    clock.now_s += 3
    for router in routers:
        with pytest.raises(ConnectionError):
            await router.synchronize()
    for router in routers:
        for _ in range(5):
            caller = ask(router, secret)
        with pytest.raises(RateLimited):
            ask(router, secret)
        with router.admit(caller, "tiny", [PROMPT]), router.admit(caller, "tiny", [PROMPT]):  # noqa: SIM117
            with pytest.raises(RateLimited), router.admit(caller, "tiny", [PROMPT]):
                pass
    shared.is_away = False
    await sync(*routers)
    assert all(router.limits.share == 1 for router in routers)


async def test_generations_at_the_same_time_count_in_all_routers_until_they_end(key_file, shared, routers, clock):
    secret = key_file.create("alice", limits=KeyLimits(concurrent_requests=2))
    one, two = routers
    await sync(one, two)
    caller = ask(one, secret)
    with one.admit(caller, "tiny", [PROMPT]), one.admit(caller, "tiny", [PROMPT]):
        await sync(one, two)
        for router in routers:
            with pytest.raises(RateLimited), router.admit(caller, "tiny", [PROMPT]):
                pass
        # A router that dies takes its generations with it.
        clock.now_s += 6
        await sync(two)
        generate(two, caller, 1)
    await sync(one, two)
    with two.admit(caller, "tiny", [PROMPT]), one.admit(caller, "tiny", [PROMPT]):
        pass


async def test_tokens_a_minute_include_prompts_and_answers(key_file, shared, routers, clock):
    secret = key_file.create("alice", limits=KeyLimits(tokens_per_minute=60))
    await sync(*routers)
    caller = ask(routers[0], secret)
    generate(routers[0], caller, 76)
    await sync(*routers)
    for router in routers:
        with pytest.raises(RateLimited) as limited:
            generate(router, caller, 1)
        assert limited.value.retry_after_s == pytest.approx(24)  # 20 tokens too many, and 4 of the prompt
    clock.now_s += 24.1
    await sync(*routers)
    generate(routers[1], caller, 1)


async def test_tokens_a_day_are_known_after_everything_has_restarted(key_file, shared, routers, clock):
    secret = key_file.create("alice", limits=KeyLimits(output_tokens_per_day=10))
    await sync(*routers)
    caller = ask(routers[0], secret)
    generate(routers[0], caller, 10)
    with pytest.raises(QuotaExceeded):
        generate(routers[0], caller, 1)
    await sync(*routers)
    shared.restart()
    later = type(routers[0])("three", shared, clock=clock)
    for router in (*routers, later):
        await router.synchronize()
        with pytest.raises(QuotaExceeded) as exceeded:
            generate(router, ask(router, secret), 1)
        assert 0 < exceeded.value.retry_after_s <= 86400


async def test_usage_counts_once_though_answers_get_lost_and_the_owner_restarts(key_file, shared, routers):
    secret = key_file.create("alice")
    await sync(*routers)
    caller = ask(routers[0], secret)
    expected = {(caller.key_id, day_of()): (1, 4, 2, 5)}
    with routers[0].admit(caller, "tiny", [PROMPT]) as usage:
        usage.add(0, output(5, 2))
        shared.loses_answers = True
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await routers[0].synchronize()
        assert usage_of(shared) == expected
        shared.restart()
        with pytest.raises(ConnectionError):
            await routers[0].synchronize()
        shared.loses_answers = False
        shared.is_away = True
        usage.add(0, output(3))
        with pytest.raises(ConnectionError):
            await routers[0].synchronize()
        shared.is_away = False
        await sync(*routers)
    await sync(*routers)
    assert usage_of(shared) == {(caller.key_id, day_of()): (1, 4, 2, 8)}
    rows, names = await routers[1].usage("", caller.key_id)
    assert (len(rows), names) == (1, {caller.key_id: "alice"})


async def test_counts_survive_a_restart_of_the_owner(key_file, shared, routers):
    secret = key_file.create("alice", limits=KeyLimits(requests_per_minute=10))
    one, two = routers
    await sync(one, two)
    for _ in range(10):
        ask(one, secret)
    await one.synchronize()
    shared.restart()  # before the other router has been informed
    await sync(one, two)
    with pytest.raises(RateLimited):
        ask(two, secret)


async def test_other_limits_of_a_key_apply_at_once_and_keep_its_counts(key_file, shared, routers):
    secret = key_file.create("alice", limits=KeyLimits(output_tokens_per_day=10, requests_per_minute=5))
    await sync(*routers)
    generate(routers[0], ask(routers[0], secret), 10)
    changed = key_file.path.read_text().replace('"requests_per_minute":5', '"requests_per_minute":50')
    key_file.path.write_text(changed)
    await sync(*routers)
    for _ in range(20):
        caller = ask(routers[0], secret)
    with pytest.raises(QuotaExceeded):
        generate(routers[0], caller, 1)


async def test_the_time_of_engines_is_divided_among_what_runs(key_file, shared, routers, clock):
    names = ("alice", "bob")
    secrets = {name: key_file.create(name) for name in names}
    await sync(*routers)
    one = routers[0]
    alice, bob = (ask(one, secrets[name]) for name in names)
    with one.admit(alice, "tiny", [PROMPT]):
        clock.now_s += 4
        with one.admit(bob, "tiny", [PROMPT]):
            clock.now_s += 6
            await one.synchronize()
        clock.now_s += 1
    clock.now_s += 100
    await sync(one)
    seconds = {row.key.key_id: row.usage.engine_s for row in shared.owner.usage_log.rows()}
    assert seconds == pytest.approx({alice.key_id: 4 + 3 + 1, bob.key_id: 3})


async def test_any_call_with_a_key_is_its_last_use_and_many_are_written_once(key_file, shared, routers):
    secret, unused = key_file.create("alice"), key_file.create("bob")
    await sync(*routers)
    shared.reports.clear()
    before_s = time.time()
    for router in routers:
        for _ in range(100):
            caller = ask(router, secret)
    shared.loses_answers = True
    with pytest.raises(ConnectionError):
        await routers[0].synchronize()
    shared.loses_answers = False
    await sync(*routers)
    written = [len(report.last_used_s) for report in shared.reports if report.last_used_s]
    assert written == [1, 1, 1]  # one of each router, and one again
    last_used_s = shared.owner.usage_log.last_used_s()
    assert last_used_s.keys() == {caller.key_id}
    assert before_s <= last_used_s[caller.key_id] <= time.time()
    with pytest.raises(AuthenticationFailed):
        ask(routers[0], unused + "x")
    shared.restart()
    await sync(*routers)
    assert shared.owner.usage_log.last_used_s() == last_used_s


async def test_sequences_count_at_the_same_time_in_all_routers(key_file, shared, routers):
    secret = key_file.create("alice", limits=KeyLimits(concurrent_requests=4))
    one, two = routers
    await sync(one, two)
    caller = ask(one, secret)
    with one.admit(caller, "tiny", [PROMPT], num_choices=3):
        await sync(one, two)
        for router in routers:
            with pytest.raises(RateLimited), router.admit(caller, "tiny", [PROMPT, PROMPT]):
                pass
            with router.admit(caller, "tiny", [PROMPT]):
                pass
    await sync(one, two)
    with two.admit(caller, "tiny", [PROMPT, PROMPT], num_choices=2):
        pass


def left(router, caller):
    return int(dict(router.limits.headers(caller.key))[b"x-ratelimit-remaining-tokens"])


@pytest.mark.parametrize("ends_by", ["itself", "error", "abort"])
async def test_tokens_are_reserved_for_answers_and_given_back(key_file, shared, routers, ends_by):
    secret = key_file.create("alice", limits=KeyLimits(tokens_per_minute=100))
    one, two = routers
    await sync(one, two)
    caller = ask(one, secret)
    ends = {"itself": None, "error": RuntimeError("broken"), "abort": asyncio.CancelledError()}
    with (
        contextlib.suppress(RuntimeError, asyncio.CancelledError),
        one.admit(caller, "tiny", [PROMPT], num_choices=2, max_tokens=40) as usage,
    ):
        await sync(one, two)
        assert [left(router, caller) for router in routers] == [16, 16]  # 100 - 4 of the prompt - 2 x 40
        for router in routers:
            with pytest.raises(RateLimited), router.admit(caller, "tiny", [PROMPT], max_tokens=13):
                pass
            with router.admit(caller, "tiny", [PROMPT], max_tokens=1):
                pass
        usage.add(0, output(10))
        await sync(one, two)
        assert [left(router, caller) for router in routers] == [8, 8]  # another 8 for two prompts, none for tokens
        if (end := ends[ends_by]) is not None:
            raise end
    await sync(one, two)
    assert [left(router, caller) for router in routers] == [78, 78]
    with two.admit(caller, "tiny", [PROMPT], max_tokens=74):
        pass


async def test_a_router_that_dies_takes_its_reservations_with_it(key_file, shared, routers, clock):
    secret = key_file.create("alice", limits=KeyLimits(tokens_per_minute=100))
    one, two = routers
    await sync(one, two)
    caller = ask(one, secret)
    with one.admit(caller, "tiny", [PROMPT], max_tokens=90):
        await sync(one, two)
        assert left(two, caller) == 6
        clock.now_s += 6
        await sync(two)
        assert left(two, caller) == 100  # four of the prompt came back meanwhile


async def test_a_request_beyond_the_whole_bucket_needs_a_full_one(key_file, shared, routers):
    secret = key_file.create("alice", limits=KeyLimits(tokens_per_minute=100))
    one = routers[0]
    await sync(one)
    caller = ask(one, secret)
    with one.admit(caller, "tiny", [PROMPT], max_tokens=5000):
        assert left(one, caller) == 0
        with pytest.raises(RateLimited) as limited, one.admit(caller, "tiny", [PROMPT]):
            pass
        assert limited.value.retry_after_s <= 60
    assert left(one, caller) == 96
    with pytest.raises(RateLimited), one.admit(caller, "tiny", [PROMPT], max_tokens=5000):
        pass


@pytest.mark.parametrize("damage", ["not json\n", None])
async def test_a_damaged_key_file_is_reported_until_it_is_mended(key_file, shared, clock, damage):
    seen = []
    router = AccessControl("one", shared, clock=clock, on_key_error=seen.append)
    secret = key_file.create("alice")
    await sync(router)
    assert (router.key_error, seen) == ("", [])
    content = key_file.path.read_text()
    key_file.path.unlink() if damage is None else key_file.path.write_text(content + damage)
    for _ in range(2):
        await sync(router)
    assert ("is gone" if damage is None else f"{key_file.path}, line 2: ") in router.key_error
    assert len(seen) == 1
    key_file.path.write_text(content)
    await sync(router)
    assert (router.key_error, seen[1:]) == ("", [""])
    assert ask(router, secret).tenant == "alice"


async def test_an_owner_that_starts_with_a_damaged_file_takes_no_keys_away(key_file, shared, routers):
    secret = key_file.create("alice")
    one, two = routers
    await one.synchronize()
    content = key_file.path.read_text()
    key_file.path.write_text("not json\n")
    shared.restart()
    await sync(one, two)
    assert ask(one, secret).tenant == "alice"
    assert not two.is_loaded.is_set()
    with pytest.raises(NotReady):
        ask(two, secret)
    assert "line 1" in one.key_error
    assert "line 1" in two.key_error
    key_file.path.write_text(content)
    key_file.revoke("alice")
    secret = key_file.create("bob")
    await sync(one, two)
    assert [ask(router, secret).tenant for router in routers] == ["bob", "bob"]
