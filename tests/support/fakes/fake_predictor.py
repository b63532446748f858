"""A predictor's engine behind a real dispatcher, with numbers that follow from its inputs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats, StepMessage, TokenDelta
from rayinfer.predictions import PredictionOutput, PredictorDescription
from rayinfer.protocols import ControlAction, GenerationRequest, ModelDescription
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer

EMBEDDING_SIZE = 8
LABELS = ("bad", "fair", "good")

EMBEDDER = PredictorDescription(
    tasks=("embed", "token_embed"),
    embedding_size=EMBEDDING_SIZE,
    normalizes=True,
    dimensions=(2, 4, EMBEDDING_SIZE),
    pooling="mean",
    prompts={"query": "query: ", "document": ""},
)
CLASSIFIER = PredictorDescription(tasks=("classify",), labels=LABELS, activation="softmax")
RERANKER = PredictorDescription(tasks=("score",), labels=("relevance",), activation="sigmoid")
TAGGER = PredictorDescription(tasks=("token_classify",), labels=("O", "B-PER", "I-PER"), activation="softmax")
IMAGES = PredictorDescription(tasks=("classify",), labels=("cat", "dog"), activation="softmax", image_size=224)


def vector_of(token_ids: Sequence[int], size: int) -> np.ndarray:
    """Count tokens by the remainder of their ids: equal texts have equal vectors, and each size its own."""
    return np.bincount(np.asarray(token_ids, dtype=np.int64) % size, minlength=size).astype("<f4") + 1


def numbers_of(request: GenerationRequest, description: PredictorDescription) -> np.ndarray:
    """Compute the raw numbers of a request."""
    prediction, ids = request.prediction, request.prompt_token_ids
    assert prediction is not None
    match prediction.task:
        case "embed":
            return vector_of(ids, description.embedding_size)
        case "token_embed":
            return np.stack([vector_of([token_id], description.embedding_size) for token_id in ids])
        case "classify":
            raw = ids or list(prediction.image or prediction.tensors)
            return vector_of(raw, len(description.labels)) / 4
        case "token_classify":
            return np.stack([vector_of([token_id], len(description.labels)) for token_id in ids])
        case "score":
            first, second = ids[: prediction.num_first_tokens], ids[prediction.num_first_tokens :]
            return np.array([len(set(first) & set(second)) / 8 - 0.5], "<f4")
        case _:
            raise AssertionError(prediction.task)


@dataclass(kw_only=True)
class FakePredictor:
    """EngineClient that answers each request at once, unless it is blocked."""

    predictor: PredictorDescription
    max_model_len: int = 64
    vocab_size: int = 384
    error_of: Callable[[GenerationRequest], str] = lambda _: ""  # of an item at fault
    fails: Callable[[GenerationRequest], bool] = lambda _: False  # whether the engine fails to compute it
    numbers: Callable[[GenerationRequest], np.ndarray] | None = None  # instead of those that follow from the input
    submitted: list[GenerationRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    _messages: "asyncio.Queue[StepMessage]" = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def description(self) -> ModelDescription:
        return ModelDescription(
            name="engine's own name",
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            created=1,
            predictor=self.predictor,
        )

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        self.submitted += requests
        deltas = [self._delta(request) for request in reversed(requests)]
        self._messages.put_nowait(StepMessage(deltas=deltas, stats=EngineStats()))

    async def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        while True:
            messages = [await self._messages.get()]
            await self.may_answer.wait()
            while not self._messages.empty():
                messages.append(self._messages.get_nowait())
            for message in reversed(messages):  # the last one is answered first: nobody may rely on the order
                yield message

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        raise InvalidParameter("no grammars here", "structured_outputs")

    async def control(self, action: ControlAction) -> list[str]:
        return ["running"]

    def _delta(self, request: GenerationRequest) -> TokenDelta:
        if self.fails(request):
            return TokenDelta(request.request_id, 0, [], finish_reason="error")
        if error := self.error_of(request):
            return TokenDelta(
                request.request_id, 0, [], finish_reason="error", prediction=PredictionOutput(error=error)
            )
        numbers = numbers_of(request, self.predictor) if self.numbers is None else self.numbers(request)
        output = PredictionOutput(shape=numbers.shape, data=numbers.astype("<f4").tobytes())
        return TokenDelta(request.request_id, 0, [], finish_reason="stop", prediction=output)


def served_predictor(
    name: str, engine: FakePredictor, tokenizer: Tokenizer, chat_template: ChatTemplate
) -> tuple[ServedModel, Dispatcher]:
    """Serve a fake predictor through a dispatcher, which the caller closes; needs a running event loop."""
    dispatcher = Dispatcher(name, tokenizer, ServiceMetrics(), router_id="r")
    dispatcher.engines.add("engine", engine, engine.description)
    model = ServedModel(
        name=name, generator=dispatcher, tokenizer=tokenizer, chat_template=chat_template, created=1_700_000_000
    )
    return model, dispatcher
