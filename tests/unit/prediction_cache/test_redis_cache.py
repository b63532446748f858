import asyncio
import time

import numpy as np
import pytest
import safetensors.numpy as safetensors

from rayinfer.prediction_cache.cache_key import CacheKey, cache_key
from rayinfer.prediction_cache.circuit_breaker import MAX_FAILURES, OPEN_S, WINDOW_S, CircuitBreaker
from rayinfer.prediction_cache.memory_cache import CachedPrediction
from rayinfer.prediction_cache.payload import MAGIC, InvalidPayload, decode_payload, encode_payload
from rayinfer.prediction_cache.redis_cache import TTL_S
from rayinfer.prediction_outputs import prediction_output
from rayinfer.predictions import PredictionOutput, PredictorDescription
from support.fakes.cached_service import CachedService
from support.fakes.fake_redis import FakeRedis
from support.fakes.held_predictor import HeldPredictor, item
from support.fakes.virtual_time import FakeClock
from support.services.polling import until

KEY = CacheKey(bytes(32))
TWO_NUMBERS = CachedPrediction(prediction_output(np.asarray([1.5, -2.0], np.float32)), 0.25)
EMBEDDER = PredictorDescription(tasks=("embed",), embedding_size=2, digest="weights")


async def filled_redis(secret=b""):
    """Return a Redis that one router has written an item to."""
    redis = FakeRedis()
    service = CachedService(redis, secret=secret)
    assert await service.number("a") == 1
    await until(lambda: redis.values)
    await service.redis.close()
    return redis


async def test_routers_share_what_one_has_computed():
    redis = await filled_redis()
    other = CachedService(redis)
    output = await other.ask("b")
    assert (other.predictor.started, output.num_cached_tokens) == ([], 3)
    assert other.model_counts.hits["redis"] == 1
    await other.ask("c")
    assert redis.reads == [1, 1]  # it is in memory now
    assert TTL_S * 0.89 < redis.seconds_to_live[0] < TTL_S * 1.11
    await other.redis.close()


async def test_a_list_of_items_is_one_command_and_only_misses_are_computed():
    redis = await filled_redis()
    service = CachedService(redis)
    redis.reads.clear()
    known, *new = await asyncio.gather(
        service.ask("known"), *(service.ask(f"new {index}", [index + 10]) for index in range(9))
    )
    assert redis.reads == [10]
    assert sorted(service.predictor.started) == [output.request_id for output in new]
    assert known.num_cached_tokens == 3
    await until(lambda: len(redis.values) == 10)
    assert redis.writes[1:] == [9] or sum(redis.writes[1:]) == 9
    await service.redis.close()


async def test_64_equal_items_ask_redis_once():
    redis = FakeRedis()
    service = CachedService(redis)
    await asyncio.gather(*(service.ask(f"r{index}") for index in range(64)))
    assert (redis.reads, service.predictor.started) == ([1], ["r0"])
    await service.redis.close()


async def test_a_dead_redis_costs_nothing_but_its_hits():
    redis, clock = FakeRedis(), FakeClock()
    redis.error = ConnectionRefusedError("dead")
    service = CachedService(redis, clock=clock)
    numbers = [await service.number(str(index), [index]) for index in range(MAX_FAILURES + 20)]
    assert numbers == list(range(1, MAX_FAILURES + 21))
    assert len(redis.reads) + len(redis.writes) <= MAX_FAILURES + 1
    assert service.counts.breaker_state == "open"
    redis.error = None
    clock.now += OPEN_S
    assert await service.number("probe", [99]) == MAX_FAILURES + 21
    assert service.counts.breaker_state == "closed"
    await service.redis.close()


async def test_a_frozen_redis_holds_few_items_up_and_each_for_a_short_time():
    redis = FakeRedis()
    redis.is_frozen = True
    service = CachedService(redis, timeout_s=0.02)
    for index in range(MAX_FAILURES):
        assert await service.number(str(index), [index]) == index + 1
    await until(lambda: service.counts.breaker_state == "open")
    num_reads, started = len(redis.reads), time.process_time()
    for index in range(100):
        await service.ask(f"more {index}", [index + 100])
    assert len(redis.reads) == num_reads
    assert time.process_time() - started < 1.0
    assert 'breaker_state{state="open"} 1.0' in service.metrics.render().decode()
    await service.redis.close()


async def test_a_full_redis_is_still_read():
    redis = await filled_redis()
    redis.is_full = True
    service = CachedService(redis)
    for index in range(2 * MAX_FAILURES):
        await service.ask(str(index), [index + 10])
        await until(lambda expected=index + 1: service.counts.redis_errors.get("refused", 0) == expected)
    assert await service.number("known") == 1
    assert service.model_counts.hits["redis"] == 1
    assert service.counts.breaker_state == "closed"
    await service.redis.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda payload: b"",
        lambda payload: b"garbage" * 100,
        lambda payload: payload[:-1],
        lambda payload: payload[:-1] + bytes([payload[-1] ^ 1]),
        lambda payload: b"RPC0" + payload[len(MAGIC) :],
        lambda payload: payload + bytes(8 * 2**20),
    ],
    ids=["empty", "garbage", "cut", "changed", "another version", "too long"],
)
async def test_garbage_in_redis_is_a_miss(damage):
    redis = await filled_redis()
    (name,) = redis.values
    redis.values[name] = damage(redis.values[name])
    service = CachedService(redis)
    service.predictor.started += ["other", "another"]
    assert await service.number("b") == 3
    assert service.counts.redis_errors == {"invalid": 1}
    await service.redis.close()


async def test_a_value_under_another_key_is_a_miss():
    redis = await filled_redis()
    (payload,) = redis.values.values()
    key = cache_key(item("other", [9, 9]), HeldPredictor().describe())
    redis.values[f"rayinfer:prediction:1:{key.hex()}"] = payload
    service = CachedService(redis)
    service.predictor.started += ["other", "another"]
    assert await service.number("b", [9, 9]) == 3
    await service.redis.close()


async def test_an_answer_that_was_written_without_the_secret_is_a_miss():
    redis = await filled_redis(secret=b"of others")
    for secret in (b"", b"ours"):
        service = CachedService(redis, secret=secret)
        service.predictor.started += ["other", "another"]
        assert await service.number("b") == 3
        await service.redis.close()
        redis = await filled_redis(secret=b"of others")
    service = CachedService(redis, secret=b"of others")
    assert (await service.number("b"), service.predictor.started) == (1, [])
    await service.redis.close()


@pytest.mark.parametrize(
    "prediction",
    [TWO_NUMBERS.output, PredictionOutput(data=safetensors.save({"y": np.arange(6, dtype=np.int32).reshape(2, 3)}))],
    ids=["embed", "infer"],
)
def test_a_payload_holds_a_prediction(prediction):
    cached = CachedPrediction(prediction, 0.25)
    task = "embed" if prediction.shape else "infer"
    assert decode_payload(KEY, encode_payload(KEY, cached, b"s"), b"s", task, EMBEDDER) == cached


@pytest.mark.parametrize(
    ("numbers", "task"),
    [
        (np.ones(3), "embed"),
        (np.ones((1, 2)), "embed"),
        (np.ones(2), "score"),
        (np.ones(2), "infer"),
        (np.asarray([1.0, np.nan]), "embed"),
    ],
)
def test_a_payload_of_another_shape_is_invalid(numbers, task):
    cached = CachedPrediction(prediction_output(numbers.astype(np.float32)), 0.0)
    with pytest.raises(InvalidPayload):
        decode_payload(KEY, encode_payload(KEY, cached, b""), b"", task, EMBEDDER)


def test_the_breaker_opens_after_failures_in_a_window_and_lets_one_probe_through():
    clock, states = FakeClock(), []
    breaker = CircuitBreaker(clock, states.append)
    for _ in range(2 * MAX_FAILURES):
        clock.now += WINDOW_S / (MAX_FAILURES - 1) + 0.1
        breaker.record_failure()
    assert breaker.allows()
    clock.now += WINDOW_S + 1
    for _ in range(MAX_FAILURES):
        assert breaker.allows()
        breaker.record_failure()
    assert not breaker.allows()
    clock.now += OPEN_S
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.record_failure()
    assert not breaker.allows()
    clock.now += OPEN_S
    assert breaker.allows()
    breaker.record_success()
    assert breaker.allows()
    assert states == ["closed", "open", "half_open", "open", "half_open", "closed"]


async def routers_at_once(redis, count=2, clients=32, **fields):
    """Equal items that many clients ask of several routers; returns the routers and the outputs."""
    routers = [CachedService(redis) for _ in range(count)]
    asked = [
        asyncio.create_task(router.ask(f"{number}-{client}", **fields))
        for client in range(clients)
        for number, router in enumerate(routers)
    ]
    return routers, await asyncio.gather(*asked)


async def close_all(routers):
    await asyncio.gather(*(router.redis.close() for router in routers))


async def test_equal_items_of_several_routers_are_computed_once():
    redis = FakeRedis()
    routers, outputs = await routers_at_once(redis)
    assert sum(len(router.predictor.started) for router in routers) == 1
    assert len(outputs) == 64
    assert len({output.prediction for output in outputs}) == 1
    await until(lambda: not redis.claimed)
    await close_all(routers)


async def leader_and_follower(redis, **fields):
    """Two routers, the first of which computes an item while the second waits for it."""
    first, second = CachedService(redis), CachedService(redis)
    first.predictor.is_open.clear()
    leading = asyncio.create_task(first.ask("leads"))
    await until(lambda: first.predictor.started)
    reads = len(redis.reads)
    following = asyncio.create_task(second.ask("follows", **fields))
    await until(lambda: len(redis.reads) > reads + 3 or second.predictor.started)  # it has looked more than once
    return first, second, leading, following


async def test_a_router_whose_item_is_cancelled_leaves_it_to_another():
    redis = FakeRedis()
    first, second, leading, following = await leader_and_follower(redis)
    assert not second.predictor.started
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert (await following).prediction is not None
    assert second.predictor.started == ["follows"]
    await close_all((first, second))


async def test_an_error_is_computed_by_each_router():
    redis = FakeRedis()
    first, second, leading, following = await leader_and_follower(redis)
    first.predictor.error = "the text is odd"
    first.predictor.is_open.set()
    assert (await leading).prediction.error
    assert not (await following).prediction.error
    await close_all((first, second))


async def test_an_item_that_is_written_between_a_look_up_and_a_claim_is_not_computed_again():
    filled, redis = await filled_redis(), FakeRedis()
    service = CachedService(redis)
    claim_all = redis.claim_all

    async def claim_late(claims, lives_ms):
        redis.values |= filled.values
        return await claim_all(claims, lives_ms)

    redis.claim_all = claim_late
    assert await service.number("b") == 1
    assert service.predictor.started == []
    await until(lambda: not redis.claimed)
    await service.redis.close()


async def test_a_claim_that_lapses_with_its_router_is_taken_over():
    redis = FakeRedis()
    first, second, leading, following = await leader_and_follower(redis)
    redis.claimed.clear()  # as Redis does after its time to live
    assert (await following).prediction is not None
    assert second.predictor.started == ["follows"]
    first.predictor.is_open.set()
    await leading
    await close_all((first, second))


async def test_a_claim_lives_while_its_item_is_computed():
    redis = FakeRedis()
    first, second, leading, following = await leader_and_follower(redis)
    await until(lambda: redis.num_renewed)
    first.predictor.is_open.set()
    assert (await leading).prediction == (await following).prediction
    assert not second.predictor.started
    await close_all((first, second))


async def test_an_urgent_item_does_not_wait_for_another_routers_less_urgent_one():
    redis = FakeRedis()
    first, second, leading, following = await leader_and_follower(redis, priority=-1)
    assert (await following).prediction is not None
    assert second.predictor.started == ["follows"]
    first.predictor.is_open.set()
    await leading
    await close_all((first, second))


async def test_an_item_that_waits_for_another_router_ends_at_its_own_time_limit():
    redis = FakeRedis()
    first, second, leading, following = await leader_and_follower(redis, timeout_s=0.2)
    assert (await following).outputs[0].finish_reason == "timeout"
    assert not second.predictor.started
    first.predictor.is_open.set()
    await leading
    await close_all((first, second))


async def test_a_redis_that_fails_while_a_router_waits_has_the_item_computed():
    redis = FakeRedis()
    first, second, leading, following = await leader_and_follower(redis)
    redis.error = ConnectionResetError("dead")
    assert (await following).prediction is not None
    first.predictor.is_open.set()
    await leading
    await close_all((first, second))
