import asyncio

import numpy as np
import pytest
import safetensors.numpy as safetensors

from rayinfer.errors import EngineDead, QueueFull
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.memory_cache import ENTRY_BYTES, CachedPrediction, MemoryCache
from rayinfer.prediction_outputs import output_numbers
from rayinfer.predictions import PredictionOutput
from support.fakes.cached_service import CachedService
from support.fakes.held_predictor import item
from support.services.polling import until


def tensors_of(**tensors):
    return safetensors.save(tensors)


async def test_an_equal_item_is_computed_once_and_counts_as_cached():
    service = CachedService()
    first, second = await service.ask("a"), await service.ask("b")
    assert service.predictor.started == ["a"]
    assert first.prediction == second.prediction
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 3)
    assert second.outputs[0].finish_reason == "stop"
    assert service.model_counts.hits["memory"] == service.model_counts.misses == 1


async def test_64_equal_items_at_once_are_computed_once():
    service = CachedService()
    tasks = await service.ask_together(64)
    service.predictor.is_open.set()
    outputs = await asyncio.gather(*tasks)
    assert service.predictor.started == ["r0"]
    assert len({output.prediction for output in outputs}) == 1
    assert service.model_counts.hits["in_flight"] == 63


async def test_a_cancelled_leader_hands_over_to_the_next_one():
    service = CachedService()
    tasks = await service.ask_together(4)
    tasks[0].cancel()
    await until(lambda: len(service.predictor.started) == 2)
    assert service.predictor.aborted == ["r0"]
    service.predictor.is_open.set()
    outputs = await asyncio.gather(*tasks[1:])
    assert service.predictor.started == ["r0", "r1"]
    assert {int(output_numbers(output.prediction)[0]) for output in outputs} == {2}


async def test_a_cancelled_follower_ends_nothing_but_itself():
    service = CachedService()
    tasks = await service.ask_together(3)
    await asyncio.sleep(0)
    tasks[1].cancel()
    service.predictor.is_open.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert service.predictor.started == ["r0"]


async def test_a_leader_that_never_begins_hands_over():
    service = CachedService()
    unused = service.cached.generate(item("unused"))
    follower = asyncio.create_task(service.ask("b"))
    await asyncio.sleep(0)
    del unused
    await follower
    assert service.predictor.started == ["b"]


async def test_an_item_that_waits_for_another_ends_at_its_own_time_limit():
    service = CachedService()
    (leader,) = await service.ask_together(1)
    output = await service.ask("b", timeout_s=0.01)
    assert output.outputs[0].finish_reason == "timeout"
    service.predictor.is_open.set()
    await leader


async def test_an_urgent_item_does_not_wait_for_a_less_urgent_one():
    service = CachedService()
    (leader,) = await service.ask_together(1, priority=5)
    urgent = asyncio.create_task(service.ask("urgent", priority=-5))
    await until(lambda: len(service.predictor.started) == 2)
    service.predictor.is_open.set()
    await asyncio.gather(leader, urgent)


async def test_an_items_error_is_shared_in_flight_and_not_kept():
    service = CachedService()
    service.predictor.error = "broken"
    tasks = await service.ask_together(8)
    service.predictor.is_open.set()
    outputs = await asyncio.gather(*tasks)
    assert {output.outputs[0].finish_reason for output in outputs} == {"error"}
    assert service.predictor.started == ["r0"]
    service.predictor.error = ""
    assert await service.number("again") == 2


async def test_a_lost_engine_fails_all_that_wait_and_is_not_kept():
    service = CachedService()
    service.predictor.failure = EngineDead("gone")
    tasks = await service.ask_together(8)
    service.predictor.is_open.set()
    assert {type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)} == {EngineDead}
    assert service.predictor.started == ["r0"]
    service.predictor.failure = None
    assert await service.number("again") == 2


async def test_a_full_queue_refuses_at_once_what_is_not_known():
    service = CachedService()
    known = await service.number("known")
    service.predictor.refusal = QueueFull("full")
    with pytest.raises(QueueFull):
        service.cached.generate(item("new", [9]))
    assert await service.number("known again") == known
    service.predictor.refusal = None
    assert await service.number("new", [9]) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"token_ids": (1, 2)}, {"token_ids": (1, 2, 3)}),
        ({"num_first_tokens": 1}, {"num_first_tokens": 2}),
        ({"task": "embed"}, {"task": "token_embed"}),
        ({"tenant": "alice"}, {"tenant": "bob"}),
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"tenant": "a", "cache_salt": "bc"}, {"tenant": "ab", "cache_salt": "c"}),
        ({"token_ids": (), "image": b"one"}, {"token_ids": (), "image": b"other"}),
        (
            {"token_ids": (), "tensors": tensors_of(x=np.zeros((2, 3), np.float32))},
            {"token_ids": (), "tensors": tensors_of(x=np.zeros((3, 2), np.float32))},
        ),
        (
            {"token_ids": (), "tensors": tensors_of(x=np.zeros(4, np.float32))},
            {"token_ids": (), "tensors": tensors_of(x=np.zeros(4, np.int32))},
        ),
        (
            {"token_ids": (), "tensors": tensors_of(x=np.ones(2, np.float32))},
            {"token_ids": (), "tensors": tensors_of(y=np.ones(2, np.float32))},
        ),
    ],
    ids=["tokens", "pair", "task", "tenant", "salt", "boundary", "image", "shape", "dtype", "name"],
)
async def test_items_that_differ_are_computed_each(one, other):
    service = CachedService()
    assert await service.number("a", **one) == 1
    assert await service.number("b", **other) == 2
    assert await service.number("c", **one) == 1


async def test_tensors_in_another_order_are_equal():
    service = CachedService()
    x, y = np.ones(2, np.float32), np.zeros(3, np.float32)
    assert await service.number("a", (), tensors=tensors_of(x=x, y=y)) == 1
    assert await service.number("b", (), tensors=tensors_of(y=y, x=x)) == 1


async def test_other_weights_are_never_answered_from_the_cache():
    service = CachedService()
    assert await service.number("a") == 1
    service.predictor.digest = "others"
    assert await service.number("b") == 2
    service.predictor.digest = ""  # engines differ
    assert [await service.number("c"), await service.number("d")] == [3, 4]
    service.predictor.digest = "weights"
    assert await service.number("e") == 1


async def test_what_is_computed_while_weights_change_is_not_kept():
    service = CachedService()
    (task,) = await service.ask_together(1)
    service.predictor.digest = "others"
    service.predictor.is_open.set()
    await task
    service.predictor.digest = "weights"
    assert await service.number("again") == 2


async def test_broken_tensors_reach_the_engine_each_time():
    service = CachedService()
    assert await service.number("a", (), tensors=b"no safetensors") == 1
    assert await service.number("b", (), tensors=b"no safetensors") == 2


def test_the_least_recently_used_predictions_make_room():
    counts = ServiceMetrics().prediction_cache_counts()
    memory = MemoryCache(3 * (ENTRY_BYTES + 100), counts)
    of_100_bytes = CachedPrediction(PredictionOutput(data=bytes(100)), 1.0)
    for key in (b"a", b"b", b"c"):
        memory.put(key, of_100_bytes)
    memory.get(b"a")
    memory.put(b"d", of_100_bytes)
    assert [memory.get(key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    memory.put(b"large", CachedPrediction(PredictionOutput(data=bytes(5000)), 1.0))
    memory.put(b"d", of_100_bytes)
    assert (counts.num_entries, counts.memory_bytes, counts.num_evicted) == (3, 3 * (ENTRY_BYTES + 100), 1)


async def test_metrics_show_the_cache():
    service = CachedService()
    await service.ask("a")
    await service.ask("b")
    text = service.metrics.render().decode()
    assert 'rayinfer_prediction_cache_hits_total{model_name="tiny",source="memory"} 1.0' in text
    assert 'rayinfer_prediction_cache_misses_total{model_name="tiny"} 1.0' in text
    assert f"rayinfer_prediction_cache_bytes {ENTRY_BYTES + 8}.0" in text
    assert "breaker" not in text
    assert "prediction_cache" not in ServiceMetrics().render().decode()


async def test_large_images_are_hashed_beside_the_event_loop(monkeypatch):
    """The loop goes on while a key is computed: it turns many times, where a key on the loop would hold it up."""
    service = CachedService()
    image = bytes(64 * 2**20)
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    first = await service.ask("first", [], image=image)
    assert turns > 100
    counting.cancel()
    again = await service.ask("again", [], image=image)
    assert (again.prediction, service.predictor.started) == (first.prediction, ["first"])
    service.predictor.refusal = QueueFull("full")
    with pytest.raises(QueueFull):
        await service.ask("refused", [], image=image + b"x")
    assert (await service.ask("known", [], image=image)).prediction == first.prediction
