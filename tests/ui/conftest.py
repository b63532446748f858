"""A service on a tiny model and pages of a headless Chromium.

`make test-ui` brings playwright and axe-core; the machine has Chromium (Debian's package `chromium`).
"""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayinfer.access.api_key import Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.predictions import PredictionOutput
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_generator import FakeGenerator
from support.fakes.fake_predictor import IMAGES
from support.faults.cli_processes import ServeCommand, serving
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_tokenizer

TIMEOUT_MS = 15_000
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Visit:
    """A page, and what it reported to the browser's console."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of complaints that a test causes itself

    def watch(self) -> "Visit":
        """Collect errors and warnings."""
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        return self

    def unexpected(self) -> list[str]:
        """Return the complaints that the test has not caused."""
        return [each for each in self.complaints if not any(part in each for part in self.expected)]

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@dataclass(frozen=True)
class KeyedService:
    """A service with keys, by their scopes."""

    url: str
    infer: str
    operate: str


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a random model that may run for thousands of tokens."""
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=8192)


@pytest.fixture(scope="session")
def serve_command(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServeCommand]:
    """Serve the model with two engines that operators may control."""
    options = ("--num-kv-blocks", 600, "--num-threads", 1, "--replicas", 2, "--enable-engine-control")
    with serving(tiny_model, *options, "--name", "tiny", cache=tmp_path_factory.mktemp("cache")) as command:
        command.wait_for_line("ready: tiny")
        yield command


@pytest.fixture
def service(serve_command: ServeCommand) -> str:
    """Return the service's address."""
    return serve_command.url


@pytest.fixture(scope="module")
def keyed_service(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[KeyedService]:
    """Serve the model with keys."""
    folder = tmp_path_factory.mktemp("keys")
    keys = KeyFile(folder / "api-keys.jsonl")
    infer = keys.create("alice", scopes=(Scope.INFER,))
    operate = keys.create("olga", scopes=(Scope.INFER, Scope.OPERATE))
    options = ("--num-kv-blocks", 600, "--num-threads", 1, "--enable-engine-control", "--api-keys", keys.path)
    with serving(tiny_model, *options, "--name", "tiny", cache=folder / "cache") as command:
        command.wait_for_line("ready: tiny")
        yield KeyedService(command.url, infer, operate)


@pytest.fixture
def fake_models(tmp_path: Path) -> dict[str, ServedModel]:
    """A model whose answers are given."""
    save_tokenizer(tmp_path, 384)
    tokenizer, template = Tokenizer.from_folder(tmp_path), ChatTemplate.from_folder(tmp_path)
    generator = FakeGenerator(max_model_len=100_000)
    model = ServedModel(name="fake", generator=generator, tokenizer=tokenizer, chat_template=template, created=0)
    return {"fake": model}


class FakeImageClassifier(FakeGenerator):
    """Predictor of images that finds the same labels in each."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield the numbers of two labels."""
        numbers = np.array([2.0, 0.5], "<f4")
        completion = CompletionOutput(index=0, text="", token_ids=[], finish_reason="stop")
        yield RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=[],
            outputs=[completion],
            finished=True,
            prediction=PredictionOutput(shape=numbers.shape, data=numbers.tobytes()),
        )

    def describe(self) -> ModelDescription:
        """Describe a classifier of two labels."""
        return replace(super().describe(), predictor=IMAGES)


@pytest.fixture
def image_models(fake_models: dict[str, ServedModel]) -> dict[str, ServedModel]:
    """A model of images whose answers are given."""
    return {"images": replace(fake_models["fake"], name="images", generator=FakeImageClassifier())}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert path is not None, "install Chromium first (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Open pages; each must leave the console without errors."""
    visits = []

    def open_page(url: str, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(TIMEOUT_MS)
        opened = Visit(context.new_page()).watch()
        visits.append(opened)
        opened.page.goto(url)
        return opened

    yield open_page
    for each in visits:
        each.page.context.close()
        assert each.unexpected() == []
