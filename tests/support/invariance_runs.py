"""Gives the mixed requests to an engine in the ways that requests may come and run."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from invariance_requests import CONTEXT, MixedRequest
from rayinfer import LLM
from rayinfer.config import engine_config
from rayinfer.engine.assembly import build_engine
from rayinfer.engine.async_engine import AsyncEngine
from rayinfer.engine.engine import Engine
from rayinfer.metrics import ServiceMetrics
from rayinfer.outputs import CompletionOutput, EngineStats, RequestOutput
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.stream_state import StreamState
from rayinfer.tokenization.bad_words import speller
from rayinfer.tokenization.tokenizer import Tokenizer

SETTINGS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "max_model_len": CONTEXT}
ROOMY: dict[str, Any] = {"num_kv_blocks": 600, "max_num_batched_tokens": 8192}


class Run(NamedTuple):
    """What everybody got, by name, and the engine's counters afterwards."""

    outputs: dict[str, RequestOutput]
    stats: EngineStats

    def num_events(self, name: str) -> int:
        """How often something happened to requests that were traced."""
        return sum(event.name == name for output in self.outputs.values() for event in output.trace or ())


def open_llm(folder: Path, **settings: Any) -> LLM:
    """Make an LLM of the mixed model."""
    return LLM(str(folder), **SETTINGS | settings)


def run(
    llm: LLM,
    requests: Iterable[MixedRequest],
    *,
    after_step: Callable[[LLM], Iterable[RequestOutput] | None] = lambda llm: None,
    trace: bool = False,
) -> Run:
    """Give an LLM all requests at once; `after_step` returns the outputs of steps of its own."""
    for request in requests:
        _add(llm, request, trace=trace)
    outputs: dict[str, RequestOutput] = {}
    while llm.has_unfinished_requests():
        told = [*llm.step(), *(after_step(llm) or ())]
        outputs |= {output.request_id: output for output in told if output.finished}
    return Run(outputs, llm.stats)


def run_alone(llm: LLM, requests: Iterable[MixedRequest]) -> Run:
    """Give an LLM one request after the other."""
    outputs: dict[str, RequestOutput] = {}
    for request in requests:
        outputs |= run(llm, [request]).outputs
    return Run(outputs, llm.stats)


def run_shuffled(llm: LLM, requests: Sequence[MixedRequest], *, seed: int, trace: bool = False) -> Run:
    """Give an LLM the requests in another order, up to three before each step."""
    chance = random.Random(seed)
    coming = chance.sample(requests, len(requests))
    outputs: dict[str, RequestOutput] = {}
    while coming or llm.has_unfinished_requests():
        for _ in range(min(chance.randrange(4), len(coming))):
            _add(llm, coming.pop(), trace=trace)
        outputs |= {output.request_id: output for output in llm.step() if output.finished}
    return Run(outputs, llm.stats)


def run_moving(folder: Path, requests: Iterable[MixedRequest], *, steps_each: int, **settings: Any) -> Run:
    """Take everybody from one engine to another again and again, with the tokens that they have by then."""
    tokenizer = Tokenizer.from_folder(folder)
    streams = {request.name: _stream(request, tokenizer) for request in requests}
    engines = itertools.cycle([_build_engine(folder, settings) for _ in range(2)])
    while parts := [part for stream in streams.values() for part in stream.engine_requests()]:
        engine = next(engines)
        for part in parts:
            engine.add_request(part)
        for delta in itertools.chain.from_iterable(engine.step() for _ in range(steps_each)):
            stream = streams[delta.request_id.rpartition("/")[0]]
            stream.apply(delta)
            for request_id in stream.stopped_request_ids():
                engine.abort(request_id)
        for part in parts:
            engine.abort(part.request_id)
    return Run({name: stream.whole() for name, stream in streams.items()}, next(engines).stats)


async def run_behind_a_router(
    folder: Path, requests: Iterable[MixedRequest], *, num_engines: int, **settings: Any
) -> Run:
    """Give a router the requests, all at once, which shares them out among engines in threads of their own."""
    async with _router(folder, num_engines, settings) as (router, engines):
        answers = [_collect(router, request) for request in requests]
        outputs = {output.request_id: output for output in await asyncio.gather(*answers)}
        return Run(outputs, engines[0].stats)


@asynccontextmanager
async def _router(
    folder: Path, num_engines: int, settings: dict[str, Any]
) -> AsyncIterator[tuple[Dispatcher, list[AsyncEngine]]]:
    engines = [AsyncEngine(_build_engine(folder, settings)) for _ in range(num_engines)]
    metrics = ServiceMetrics(CollectorRegistry())
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


async def _collect(router: Dispatcher, request: MixedRequest) -> RequestOutput:
    """Read a stream to its end and put its deltas together."""
    choices = [CompletionOutput(index=index, text="", token_ids=[]) for index in range(request.params.n)]
    whole = RequestOutput(request_id=request.name, prompt_token_ids=request.prompt_token_ids, outputs=choices)
    async for output in router.generate(_on_the_wire(request)):
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


def _on_the_wire(request: MixedRequest) -> GenerationRequest:
    return GenerationRequest(
        request_id=request.name,
        prompt_token_ids=request.prompt_token_ids,
        sampling_params=request.params,
        priority=request.priority,
    )


def _stream(request: MixedRequest, tokenizer: Tokenizer) -> StreamState:
    params = request.params.with_bad_words_spelled(speller(tokenizer))
    return StreamState(replace(_on_the_wire(request), sampling_params=params), tokenizer)


def _build_engine(folder: Path, settings: dict[str, Any]) -> Engine:
    return build_engine(engine_config(model=str(folder), **SETTINGS | settings), folder)


def _add(llm: LLM, request: MixedRequest, *, trace: bool = False) -> None:
    llm.add_request(
        request.prompt_token_ids, request.params, request_id=request.name, priority=request.priority, trace=trace
    )
