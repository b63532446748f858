"""An application with a language model and fake predictors of every task, each behind a dispatcher of its own."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI
from tokenizers import processors

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.trace_store import TraceStore
from support.fakes.fake_predictor import (
    CLASSIFIER,
    EMBEDDER,
    IMAGES,
    RERANKER,
    TAGGER,
    FakePredictor,
    served_predictor,
)
from support.tiny_models.tiny_tokenizers import byte_level

MAX_BODY_BYTES = 400_000
DESCRIPTIONS = {
    "embedder": EMBEDDER,
    "classifier": CLASSIFIER,
    "reranker": RERANKER,
    "tagger": TAGGER,
    "images": IMAGES,
}
LIMITS = RequestLimits(max_inputs=40, max_images=3, max_image_bytes=50_000, max_response_numbers=4096)


@dataclass
class Predictors:
    """The application and what is behind it."""

    app: FastAPI
    models: dict[str, ServedModel]
    engines: dict[str, FakePredictor]
    tokenizer: Tokenizer
    kserve: InferenceService


@pytest.fixture(scope="session")
def pair_tokenizer() -> Tokenizer:
    """Byte-level BPE with BERT's templates."""
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s>:0 $A:0 </s>:0 $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return Tokenizer(backend)


@pytest.fixture
async def predictors(models, pair_tokenizer) -> AsyncIterator[Predictors]:
    engines, dispatchers = {}, []
    for name, description in DESCRIPTIONS.items():
        engine = FakePredictor(predictor=description, vocab_size=pair_tokenizer.vocab_size)
        chat_template = models["org/tiny"].chat_template
        models[name], dispatcher = served_predictor(name, engine, pair_tokenizer, chat_template)
        engines[name] = engine
        dispatchers.append(dispatcher)
    kserve = InferenceService(GenerationService(models, None, TraceStore(), LIMITS), ModelRepository(models))
    app = build_app(models, ServiceMetrics(), max_body_bytes=MAX_BODY_BYTES, kserve=kserve)
    yield Predictors(app, models, engines, pair_tokenizer, kserve)
    for dispatcher in dispatchers:
        await dispatcher.close()


@pytest.fixture
async def client(predictors: Predictors) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(predictors.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client
