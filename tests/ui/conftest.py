"""A service on a tiny model and pages of a headless Chromium.

`make test-ui` brings playwright and axe-core; the machine has Chromium (Debian's package `chromium`).
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_generator import FakeGenerator
from support.faults.cli_processes import serving
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_tokenizer

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Visit:
    """A page, and what it reported to the browser's console."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def watch(self) -> "Visit":
        """Collect errors and warnings."""
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        return self

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a random model that may run for thousands of tokens; yields its address."""
    folder = tmp_path_factory.mktemp("service")
    model = make_tiny_llama(folder / "tiny", max_position_embeddings=8192)
    with serving(
        model, "--num-kv-blocks", 600, "--num-threads", 1, "--name", "tiny", cache=folder / "cache"
    ) as command:
        command.wait_for_line("ready: tiny")
        yield command.url


@pytest.fixture
def fake_models(tmp_path: Path) -> dict[str, ServedModel]:
    """A model whose answers are given."""
    save_tokenizer(tmp_path, 384)
    tokenizer, template = Tokenizer.from_folder(tmp_path), ChatTemplate.from_folder(tmp_path)
    generator = FakeGenerator(max_model_len=100_000)
    model = ServedModel(name="fake", generator=generator, tokenizer=tokenizer, chat_template=template, created=0)
    return {"fake": model}


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
        opened = Visit(context.new_page()).watch()
        visits.append(opened)
        opened.page.goto(url)
        return opened

    yield open_page
    for each in visits:
        each.page.context.close()
        assert each.complaints == []
