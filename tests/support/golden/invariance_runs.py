"""Runs of the mixed requests on an engine, with all ways of arrival and scheduling."""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import rayinfer
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.drafting.drafter import Drafter
from rayinfer.engine.loop.engine import Engine
from rayinfer.outputs import EngineStats, OutputAggregate, RequestOutput
from rayinfer.protocols import EngineRequestId, GenerationRequest
from rayinfer.routing.stream_state import StreamState
from rayinfer.sampling_params import Speculation
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_drafter import UnreliableDrafter, known_answers
from support.golden.invariance_requests import CONTEXT, VOCAB_SIZE, MixedRequest
from support.services.engine_streams import EngineStreams

if TYPE_CHECKING:
    from rayinfer import LLM

SETTINGS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "max_model_len": CONTEXT}
MODES: tuple[Speculation | None, ...] = (None, "off", "auto", 2, 16)
ROOMY: dict[str, Any] = {"num_kv_blocks": 600, "max_num_batched_tokens": 8192}

AnyLLM: TypeAlias = "LLM | EngineStreams"


class Run(NamedTuple):
    """Outputs of all requests, by name, and the engine's counters afterwards."""

    outputs: dict[str, RequestOutput]
    stats: EngineStats

    def num_events(self, name: str) -> int:
        """Return how often something happened to requests that were traced."""
        return sum(event.name == name for output in self.outputs.values() for event in output.trace or ())


def open_llm(folder: Path, **settings: Any) -> "LLM":
    """Make an LLM of the mixed model; its packages are loaded now, and not all machines for GPUs have them."""
    return rayinfer.LLM(str(folder), **SETTINGS | settings)


def open_streams(folder: Path, *, drafter: Drafter | None = None, **settings: Any) -> EngineStreams:
    """Make an engine of the mixed model that takes the same calls, with the packages that any engine needs."""
    return EngineStreams(build_mixed_engine(folder, settings, drafter), folder)


def run(
    llm: AnyLLM,
    requests: Iterable[MixedRequest],
    *,
    after_step: Callable[[AnyLLM], Iterable[RequestOutput] | None] = lambda llm: None,
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


def run_alone(llm: AnyLLM, requests: Iterable[MixedRequest]) -> Run:
    """Give an LLM one request after the other."""
    outputs: dict[str, RequestOutput] = {}
    for request in requests:
        outputs |= run(llm, [request]).outputs
    return Run(outputs, llm.stats)


def run_shuffled(llm: AnyLLM, requests: Sequence[MixedRequest], *, seed: int, trace: bool = False) -> Run:
    """Give an LLM the requests in another order, up to three before each step."""
    chance = random.Random(seed)
    coming = chance.sample(requests, len(requests))
    outputs: dict[str, RequestOutput] = {}
    while coming or llm.has_unfinished_requests():
        for _ in range(min(chance.randrange(4), len(coming))):
            _add(llm, coming.pop(), trace=trace)
        outputs |= {output.request_id: output for output in llm.step() if output.finished}
    return Run(outputs, llm.stats)


def run_moving(
    folder: Path,
    requests: Iterable[MixedRequest],
    *,
    steps_each: int,
    drafter: Drafter | None = None,
    **settings: Any,
) -> Run:
    """Migrate all requests between two engines again and again, with the tokens that they have by then."""
    tokenizer = Tokenizer.from_folder(folder)
    streams = {each.name: StreamState(generation_request(each, tokenizer), tokenizer) for each in requests}
    whole = {name: OutputAggregate(stream.request.sampling_params.n) for name, stream in streams.items()}
    engines = itertools.cycle([build_mixed_engine(folder, settings, drafter) for _ in range(2)])
    while parts := [part for stream in streams.values() for part in stream.engine_requests()]:
        engine = next(engines)
        for part in parts:
            engine.add_request(part)
        for delta in itertools.chain.from_iterable(engine.step() for _ in range(steps_each)):
            name = EngineRequestId.request_id_of(delta.request_id)
            stream = streams[name]
            if (output := stream.apply(delta)) is not None:
                whole[name].add(output)
            for request_id in stream.stopped_request_ids():
                engine.abort(request_id)
        for part in parts:
            engine.abort(part.request_id)
    return Run({name: outputs.whole() for name, outputs in whole.items()}, next(engines).stats)


def unreliable_drafter(known: Run, seed: int = 0) -> UnreliableDrafter:
    """Make a drafter that knows these answers."""
    outputs = known.outputs.values()
    answers = [(each.prompt_token_ids, choice.token_ids) for each in outputs for choice in each.outputs]
    return UnreliableDrafter(known_answers(answers), VOCAB_SIZE, random.Random(seed))


def with_modes(requests: Iterable[MixedRequest]) -> list[MixedRequest]:
    """Give the requests each setting of `speculation` in turn."""
    modes = itertools.cycle(MODES)
    return [each._replace(params=replace(each.params, speculation=next(modes))) for each in requests]


def generation_request(request: MixedRequest, tokenizer: Tokenizer) -> GenerationRequest:
    """Make a request as servers send it to routers."""
    return GenerationRequest(
        request_id=request.name,
        prompt_token_ids=request.prompt_token_ids,
        sampling_params=request.params.with_tokenized_bad_words(bad_word_tokenizer(tokenizer)),
        priority=request.priority,
    )


def build_mixed_engine(folder: Path, settings: dict[str, Any], drafter: Drafter | None = None) -> Engine:
    return build_engine(engine_config(model=str(folder), **SETTINGS | settings), folder, drafter=drafter)


def _add(llm: AnyLLM, request: MixedRequest, *, trace: bool = False) -> None:
    llm.add_request(
        request.prompt_token_ids, request.params, request_id=request.name, priority=request.priority, trace=trace
    )
