import asyncio
import contextlib

from fake_engine_client import FakeEngineClient
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.delta_queue import DeltaQueue
from rayinfer.routing.engine_link import EngineLink
from rayinfer.sampling_params import SamplingParams


async def test_a_client_that_leaves_while_its_request_is_on_the_way_has_it_aborted_only_after_it_arrived():
    client = FakeEngineClient()
    link = EngineLink(
        "engine",
        client,
        client.description,
        router_id="router",
        on_stats=lambda name, stats: None,
        on_lost=lambda name, reason: None,
    )
    client.submit_may_arrive.clear()
    request = GenerationRequest(request_id="a/0", prompt_token_ids=[1], sampling_params=SamplingParams())
    submitting = asyncio.ensure_future(link.submit([request], DeltaQueue()))
    await _let_others_run()
    submitting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await submitting
    await _let_others_run()
    assert (client.submitted_ids, client.aborted, link.num_in_flight) == ([], [], 0)

    client.submit_may_arrive.set()
    await _let_others_run()
    assert (client.submitted_ids, client.aborted) == (["a/0"], ["a/0"])


async def _let_others_run():
    for _ in range(20):
        await asyncio.sleep(0)
