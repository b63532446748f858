"""Predictor engines behind a router's dispatcher, all in this process."""

import asyncio
import contextlib
import threading

import pytest

from rayinfer.credits import credits_of_each
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.errors import EngineDead, TaskNotServed
from rayinfer.liveness import LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import Credits
from rayinfer.prediction_outputs import output_numbers
from rayinfer.protocols import GenerationRequest, Pause, Resume
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.preparation import prepare
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_engine_client import FakeEngineClient
from support.fakes.fake_runner import (
    GUILTY,
    OUT_OF_MEMORY,
    FakeRunner,
    expected_numbers,
    item_request,
    predictor_engine,
)
from support.fakes.virtual_time import FakeClock
from support.services.polling import until

TIMEOUT_S = 60.0


@contextlib.asynccontextmanager
async def service_of(tokenizer, *engines):
    """A dispatcher over these engines, whose loops run."""
    dispatcher = Dispatcher("m", tokenizer, ServiceMetrics("r"), router_id="r")
    running = [AsyncEngine(engine, limits=LivenessLimits(loop_heartbeat_s=0.02)) for engine in engines]
    for number, engine in enumerate(running):
        engine.start()
        dispatcher.engines.add(f"engine-{number}", engine, engine.description)
    try:
        yield dispatcher, running
    finally:
        await dispatcher.close()
        await asyncio.gather(*(engine.shutdown() for engine in running))


async def answer(dispatcher, request):
    """Return an item's only output."""
    async with asyncio.timeout(TIMEOUT_S), contextlib.aclosing(dispatcher.generate(request)) as outputs:
        (output,) = [output async for output in outputs]
    assert output.finished
    return output


async def test_items_are_answered_with_their_numbers(tokenizer):
    runner = FakeRunner(base_s=0.005)
    async with service_of(tokenizer, predictor_engine(runner)) as (dispatcher, _):
        answers = await asyncio.gather(
            *(answer(dispatcher, item_request(f"r{number}", [number, 3])) for number in range(50))
        )
        for number, output in enumerate(answers):
            assert output_numbers(output.prediction).tolist() == expected_numbers([number, 3]).tolist()
            assert output.outputs[0].token_ids == []
        assert max(runner.batches) > 5
        assert dispatcher.status().num_waiting == 0


async def test_the_item_at_fault_gets_an_error_and_the_others_their_numbers(tokenizer):
    async with service_of(tokenizer, predictor_engine(FakeRunner(base_s=0.005))) as (dispatcher, _):
        tokens = {f"r{number}": GUILTY if number == 7 else number for number in range(32)}
        answers = await asyncio.gather(
            *(answer(dispatcher, item_request(name, [token])) for name, token in tokens.items())
        )
        reasons = {output.request_id: output.outputs[0].finish_reason for output in answers}
        assert [name for name, reason in reasons.items() if reason == "error"] == ["r7"]
        assert answers[7].prediction.error == "the model could not compute this input: RuntimeError"


async def test_an_item_that_the_engine_refuses_gets_the_reason(tokenizer):
    async with service_of(tokenizer, predictor_engine(FakeRunner())) as (dispatcher, _):
        output = await answer(dispatcher, item_request("r", [999]))
        assert output.outputs[0].finish_reason == "error"
        assert "token ids from 0 to 255" in output.prediction.error


class DyingRunner(FakeRunner):
    """A runner whose engine dies of its third batch of requests."""

    num_of_requests = 0

    def run(self, batch):
        self.num_of_requests += any(any(item.token_ids) for item in batch)  # zeros measure its steps
        if self.num_of_requests == 3:
            raise MemoryError
        return super().run(batch)


async def test_items_of_a_dying_engine_are_computed_elsewhere_once(tokenizer):
    dying = DyingRunner(base_s=0.002)
    async with service_of(tokenizer, predictor_engine(dying), predictor_engine(FakeRunner(base_s=0.002))) as (
        dispatcher,
        engines,
    ):

        async def client(name):
            return [await answer(dispatcher, item_request(f"{name}-{turn}", [turn, 9])) for turn in range(20)]

        for answers in await asyncio.gather(*(client(f"c{number}") for number in range(20))):
            for turn, output in enumerate(answers):
                assert output_numbers(output.prediction).tolist() == expected_numbers([turn, 9]).tolist()
        assert not engines[0].is_alive
        assert dispatcher.engines.names == ["engine-1"]


async def test_an_item_that_ends_every_engine_is_rejected_and_spares_the_rest(tokenizer):
    async with service_of(tokenizer, *(predictor_engine(FakeRunner()) for _ in range(4))) as (dispatcher, engines):
        with pytest.raises(EngineDead, match="every engine that tried"):
            await answer(dispatcher, item_request("poison", [OUT_OF_MEMORY]))
        assert sum(engine.is_alive for engine in engines) == 1
        assert (await answer(dispatcher, item_request("good"))).prediction.shape == (2,)


async def test_a_client_that_leaves_costs_no_step(tokenizer):
    runner = FakeRunner()
    async with service_of(tokenizer, predictor_engine(runner)) as (dispatcher, (engine,)):
        await engine.control(Pause())
        waiting = asyncio.create_task(answer(dispatcher, item_request("left")))
        await until(lambda: engine.num_unfinished == 1)
        waiting.cancel()
        await until(lambda: engine.num_unfinished == 0)
        num_steps = len(runner.batches)
        await engine.control(Resume())
        await answer(dispatcher, item_request("other"))
        assert runner.batches[num_steps:] == [1]


async def test_an_item_that_is_being_computed_is_unfinished(tokenizer):
    may_end = threading.Event()
    may_end.set()
    runner = FakeRunner(sleep=lambda _: may_end.wait(TIMEOUT_S))
    async with service_of(tokenizer, predictor_engine(runner)) as (dispatcher, (engine,)):
        may_end.clear()
        num_steps = len(runner.batches)
        waiting = asyncio.create_task(answer(dispatcher, item_request("r")))
        await until(lambda: len(runner.batches) > num_steps)
        assert engine.num_unfinished == 1  # or a drained engine would be ended with it
        may_end.set()
        await waiting
        assert engine.num_unfinished == 0


async def test_a_step_waits_for_likely_arrivals_and_takes_them_together(tokenizer):
    clock = FakeClock()
    runner = FakeRunner(base_s=10.0, sleep=lambda seconds: setattr(clock, "now", clock.now + seconds))
    engine = predictor_engine(runner, clock=clock, max_wait_ms=1000, target_step_ms=10_000)
    runner.batches.clear()
    async with service_of(tokenizer, engine) as (dispatcher, (running,)):
        await running.control(Pause())
        requests = []
        for number in range(5):
            clock.now += 0.1
            requests.append(asyncio.create_task(answer(dispatcher, item_request(f"r{number}"))))
            await until(
                lambda wanted=number + 1: running.num_unfinished == wanted and engine.num_unfinished_requests == wanted
            )
        await running.control(Resume())
        await asyncio.sleep(0.05)  # far longer than a step takes; time stands still for the batcher
        assert runner.batches == []
        clock.now += 0.5
        await asyncio.gather(*requests)
        assert runner.batches == [5]


async def test_text_is_not_generated_by_a_predictor_and_numbers_not_predicted_by_a_language_model(tokenizer):
    async with service_of(tokenizer, predictor_engine(FakeRunner())) as (dispatcher, _):
        text = GenerationRequest(request_id="r", prompt_token_ids=[1], sampling_params=SamplingParams())
        with pytest.raises(TaskNotServed, match="does not generate text"):
            dispatcher.generate(text)
        client = FakeEngineClient()
        dispatcher.engines.remove("engine-0", "test")
        dispatcher.engines.add("language", client, client.description)
        with pytest.raises(TaskNotServed, match="makes no predictions"):
            dispatcher.generate(item_request("r"))


@pytest.mark.parametrize(
    ("fields", "cost"), [({"image": b"x"}, 16), ({"tensors": bytes(9000)}, 2), ({"image": b"", "tensors": b"x"}, 1)]
)
def test_items_without_a_text_get_their_cost_from_the_router(fields, cost):
    description = predictor_engine(FakeRunner(image_size=64)).description
    prepared = prepare(item_request("r", (), priority=-5, **fields), description, RouterLimits())
    assert prepared.num_input_tokens == cost
    assert prepared.sampling_params.seed is None


def test_a_predictor_grants_two_steps():
    engine = predictor_engine(FakeRunner(), max_num_seqs=32, max_num_batched_tokens=512)
    assert credits_of_each(engine.description, 1) == Credits(64, 0, 2 * engine.description.max_num_batched_tokens)
