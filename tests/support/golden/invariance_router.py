"""Runs of the mixed requests through a router over engines in threads of their own."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rayinfer.engine.drafting.drafter import Drafter
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import RouterLimits
from rayinfer.tokenization.tokenizer import Tokenizer
from support.golden.invariance_requests import MixedRequest
from support.golden.invariance_runs import Run, build_mixed_engine, generation_request

_LONGEST_WAIT_S = 10


async def run_behind_a_router(
    folder: Path,
    requests: Iterable[MixedRequest],
    *,
    num_engines: int,
    drafter: Drafter | None = None,
    **settings: Any,
) -> Run:
    """Give a router the requests, all at once, which shares them out among engines in threads of their own."""
    async with _router(folder, num_engines, settings, drafter) as (router, engines):
        tokenizer = Tokenizer.from_folder(folder)
        answers = [_collect(router, generation_request(request, tokenizer)) for request in requests]
        outputs = {output.request_id: output for output in await asyncio.gather(*answers)}
        await _wait_until_idle(engines)
        return Run(outputs, engines[0].stats)


async def _wait_until_idle(engines: list[AsyncEngine]) -> None:
    """Wait until the engines have ended what answers no longer need: routers find stop strings, and abort then."""
    end = asyncio.get_running_loop().time() + _LONGEST_WAIT_S
    while any(engine.stats.num_running or engine.stats.num_waiting for engine in engines):
        assert asyncio.get_running_loop().time() < end, "engines still hold requests after all answers ended"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def _router(
    folder: Path, num_engines: int, settings: dict[str, Any], drafter: Drafter | None
) -> AsyncIterator[tuple[Dispatcher, list[AsyncEngine]]]:
    engines = [AsyncEngine(build_mixed_engine(folder, settings, drafter)) for _ in range(num_engines)]
    metrics = ServiceMetrics()
    router = Dispatcher(
        "mixed",
        Tokenizer.from_folder(folder),
        metrics,
        router_id="router",
        limits=RouterLimits(max_waiting_requests=1000, max_waiting_tokens=10**9),
    )
    try:
        for number, engine in enumerate(engines):
            engine.start()
            router.engines.add(f"engine-{number}", engine, engine.description)
        yield router, engines
    finally:
        await router.close()
        await asyncio.gather(*(engine.shutdown() for engine in engines))


async def _collect(router: Dispatcher, request: GenerationRequest) -> RequestOutput:
    """Read a stream to its end and put its deltas together."""
    choices = [CompletionOutput(index=index, text="", token_ids=[]) for index in range(request.sampling_params.n)]
    whole = RequestOutput(request_id=request.request_id, prompt_token_ids=request.prompt_token_ids, outputs=choices)
    async for output in router.generate(request):
        whole.finished = output.finished
        whole.prompt_logprobs = whole.prompt_logprobs or output.prompt_logprobs
        for delta in output.outputs:
            choice = choices[delta.index]
            assert choice.finish_reason is None
            choice.text += delta.text
            choice.token_ids += delta.token_ids
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
            if delta.logprobs is not None:
                choice.logprobs = [*(choice.logprobs or ()), *delta.logprobs]
    return whole
