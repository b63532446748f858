from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_generator import FakeGenerator
from support.tiny_models.tiny_checkpoints import save_tokenizer

MAX_BODY_BYTES = 200_000


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, 384)
    return folder


@pytest.fixture
def generator() -> FakeGenerator:
    return FakeGenerator()


@pytest.fixture
def models(generator: FakeGenerator, tokenizer_folder: Path) -> dict[str, ServedModel]:
    model = ServedModel(
        name="org/tiny",
        generator=generator,
        tokenizer=Tokenizer.from_folder(tokenizer_folder),
        chat_template=ChatTemplate.from_folder(tokenizer_folder),
        created=1_700_000_000,
    )
    return {"org/tiny": model}


@pytest.fixture
def metrics() -> ServiceMetrics:
    return ServiceMetrics()


@pytest.fixture
def app(models: dict[str, ServedModel], metrics: ServiceMetrics) -> FastAPI:
    return build_app(models, metrics, max_body_bytes=MAX_BODY_BYTES)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client
