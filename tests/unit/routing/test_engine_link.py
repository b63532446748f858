import asyncio
import contextlib
import contextvars

import pytest

from rayinfer.errors import EngineDead
from rayinfer.outputs import EngineStats, StepMessage
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.engine_link import EngineLink
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_engine_client import FakeEngineClient

caller = contextvars.ContextVar("caller", default="nobody")


class ClientThatKnowsItsCaller(FakeEngineClient):
    """Engine client that records the context of its calls."""

    def __init__(self):
        super().__init__()
        self.callers = []

    async def submit(self, requests, router_id):
        self.callers.append(("submit", caller.get()))
        await super().submit(requests, router_id)

    async def abort(self, request_ids):
        self.callers.append(("abort", caller.get()))
        await super().abort(request_ids)


async def test_an_abort_is_sent_after_the_pending_submission():
    client = FakeEngineClient()
    link = open_link(client)
    client.submit_may_arrive.clear()
    link.send([request("a/0")], DeltaQueue())
    submitting = asyncio.ensure_future(link.wait_accepted(["a/0"]))
    await let_others_run()
    submitting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await submitting
    await let_others_run()
    assert (client.submitted_ids, client.aborted, link.num_in_flight) == ([], [], 0)

    client.submit_may_arrive.set()
    await let_others_run()
    assert (client.submitted_ids, client.aborted) == (["a/0"], ["a/0"])


async def test_engine_calls_run_outside_the_requests_context():
    client = ClientThatKnowsItsCaller()
    link = open_link(client)
    caller.set("a request")
    link.send([request("a/0")], DeltaQueue())
    await link.wait_accepted(["a/0"])
    link.abort(["a/0"])
    await let_others_run()
    assert client.callers == [("submit", "nobody"), ("abort", "nobody")]


async def test_acked_raises_when_the_engine_is_lost():
    client = FakeEngineClient()
    link = open_link(client)
    client.submit_may_arrive.clear()  # as the process is frozen
    link.send([request("a/0")], DeltaQueue())
    waiting = asyncio.ensure_future(link.wait_accepted(["a/0"]))
    await let_others_run()
    link.fail(EngineDead("it has given no sign of life"))
    with pytest.raises(EngineDead):
        await asyncio.wait_for(waiting, 5.0)


async def test_messages_read_before_the_engine_was_lost_are_dropped():
    class ClientThatHasReadAhead(FakeEngineClient):
        async def outputs(self, router_id):
            await asyncio.sleep(0)
            for step in range(3):  # without a turn of the loop between them, in which the listener could be cancelled
                yield StepMessage(deltas=[], stats=EngineStats(num_steps_total=step))

    steps = []

    def on_message(name, message):
        steps.append(message.stats.num_steps_total)
        link.fail(EngineDead("it was drained"))

    link = open_link(ClientThatHasReadAhead(), on_message)
    await let_others_run()
    assert steps == [0]


def open_link(client, on_message=lambda name, message: None):
    return EngineLink(
        "engine",
        client,
        client.description,
        router_id="router",
        on_message=on_message,
        on_lost=lambda name, reason: None,
        on_trace=lambda request_id, events: None,
    )


def request(request_id):
    return GenerationRequest(request_id=request_id, prompt_token_ids=[1], sampling_params=SamplingParams())


async def let_others_run():
    for _ in range(20):
        await asyncio.sleep(0)
