from collections.abc import Iterator
from pathlib import Path

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineState
from rayinfer.protocols import GetState, Pause, Resume
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_generator import FakeGenerator
from support.services.served_application import served
from support.tiny_models.tiny_checkpoints import save_tokenizer


class FakeEngines:
    """Engines that are paused and resumed."""

    def __init__(self) -> None:
        self.state = EngineState.RUNNING

    async def control(self, action) -> list[str]:
        """Change the state."""
        if action != GetState():
            self.state = {Pause(): EngineState.PAUSED, Resume(): EngineState.RUNNING}[action]
        return [self.state]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, 384)
    return folder


@pytest.fixture
def generator() -> FakeGenerator:
    return FakeGenerator(default_sampling_params={"temperature": 0.3, "top_k": 7})


@pytest.fixture
def address(generator: FakeGenerator, tokenizer_folder: Path) -> Iterator[str]:
    """Serve a model over the fake generator."""
    model = ServedModel(
        name="org/tiny",
        generator=generator,
        tokenizer=Tokenizer.from_folder(tokenizer_folder),
        chat_template=ChatTemplate.from_folder(tokenizer_folder),
        created=1,
        engines=FakeEngines(),
    )
    app = build_app({"org/tiny": model}, ServiceMetrics(), enable_engine_control=True)
    with served(app) as address:
        yield address
