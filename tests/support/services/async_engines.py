"""AsyncEngine on a fake executor, and a reader of a router's messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.liveness import LivenessLimits
from rayinfer.outputs import FinishReason
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_executor import FakeExecutor, drive

TIMEOUT_S = 10.0
ENDLESS = 10_000
QUICK_LIMITS = LivenessLimits(loop_heartbeat_s=0.02)


class FakedEngine(AsyncEngine):
    """An AsyncEngine with access to its executor."""

    executor: FakeExecutor


def request(request_id: str, prompt: list[int], max_tokens: int = 4, **fields: Any) -> GenerationRequest:
    """A request that only its length ends."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return GenerationRequest(request_id=request_id, prompt_token_ids=prompt, sampling_params=params, **fields)


@asynccontextmanager
async def running(limits: LivenessLimits = QUICK_LIMITS, **settings: Any) -> AsyncIterator[FakedEngine]:
    """An engine whose loop runs."""
    driven = drive(**settings)
    engine = FakedEngine(driven.engine, limits=limits)
    engine.executor = driven.executor
    engine.start()
    try:
        yield engine
    finally:
        await asyncio.wait_for(engine.shutdown(), TIMEOUT_S)


async def collect(
    engine: AsyncEngine, router_id: str, until: int
) -> tuple[dict[str, list[int]], dict[str, FinishReason]]:
    """Read a router's messages until so many requests have ended; returns each one's tokens and finish reason."""
    tokens: dict[str, list[int]] = {}
    ends: dict[str, FinishReason] = {}
    async with asyncio.timeout(TIMEOUT_S), aclosing(engine.outputs(router_id)) as messages:  # type: ignore[type-var]
        async for message in messages:
            for delta in message.deltas:
                known = tokens.setdefault(delta.request_id, [])
                assert delta.request_id not in ends
                assert delta.start_pos == len(known)
                known += delta.token_ids
                if delta.finish_reason:
                    ends[delta.request_id] = delta.finish_reason
            if len(ends) >= until:
                break
    return tokens, ends
