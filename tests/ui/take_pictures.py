"""Pictures of every view, light and dark, at three widths: at rest, under load, and with an engine killed.

    PYTHONPATH=build/ui:tests .venv/bin/python tests/ui/take_pictures.py FOLDER

Serves a model on two engines, and reports what axe-core finds serious in each picture, pages wider than their window,
and texts cut off without an ellipsis.
"""

import argparse
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from support.faults.cli_processes import ServeCommand, engine_pids, serving

WIDTHS = (1440, 1100, 390)
THEMES = ("light", "dark")
NUM_STREAMS = 10  # more than the engines' batches hold, so that some wait
OPTIONS = ("--replicas", 2, "--max-num-seqs", 3, "--num-threads", 1, "--enable-engine-control")
WAIT_MS = 90_000
MISFITS = """() => {
    const found = document.documentElement.scrollWidth > innerWidth ? ["page wider than its window"] : [];
    for (const each of document.querySelectorAll("body *")) {
        const style = getComputedStyle(each);
        if (style.overflowX === "hidden" && style.textOverflow !== "ellipsis" && each.scrollWidth > each.clientWidth + 1
            && !each.matches(".hidden")) found.push(each.outerHTML.slice(0, 120));
    }
    return found;
}"""


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    cache = Path(os.environ.get("RAYINFER_CACHE", Path.home() / ".cache" / "rayinfer"))
    with serving(options.model, *OPTIONS, cache=cache) as command, sync_playwright() as playwright:
        command.wait_for_line("ready: ")
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        Pictures(browser, command, options.folder).take_all()
        browser.close()


class Pictures:
    """A browser's pages by theme and width, and the folder for their pictures."""

    def __init__(self, browser: Browser, command: ServeCommand, folder: Path) -> None:
        self._browser = browser
        self._command = command
        self._url = command.url
        self._folder = folder

    def take_all(self) -> None:
        """Take the pictures of all views; the live view last, as its engine is killed."""
        for name, prepare in {"docs": open_operation, "chat": ask, "side-by-side": compare, "tokens": complete}.items():
            for page, suffix in self._pages(name if name != "side-by-side" else "chat"):
                prepare(page)
                self._take(page, f"{name}-{suffix}")
        with contextlib.ExitStack() as load:
            live = list(self._pages("live"))
            for number in range(NUM_STREAMS):
                load.enter_context(stream(self._url, number))
            live[0][0].wait_for_timeout(25_000)
            for page, suffix in live:
                self._take(page, f"live-load-{suffix}")
            self._kill_engine(live[0][0])
            for page, suffix in live:
                page.locator(".marks li.bad", has_text="is gone").first.wait_for()
                self._take(page, f"live-engine-down-{suffix}")
            for page, suffix in self._pages("requests"):
                page.locator("tbody tr").first.wait_for()
                self._take(page, f"requests-{suffix}")
                page.locator("tbody tr", has_text="migration").first.locator("a").click()
                page.locator(".waterfall").wait_for()
                self._take(page, f"request-{suffix}")
        live[0][0].locator(".engine", has_text="0 running").nth(1).wait_for()
        for page, suffix in live:
            page.get_by_role("button", name="Drain").first.click()
            self._take(page, f"dialog-{suffix}")

    def _pages(self, view: str) -> Iterator[tuple[Page, str]]:
        for theme in THEMES:
            for width in WIDTHS:
                context = self._browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True
                )
                context.set_default_timeout(WAIT_MS)
                page = context.new_page()
                page.goto(f"{self._url}/#{view}")
                page.locator("#ready", has_text="ready").wait_for()
                yield page, f"{theme}-{width}"

    def _take(self, page: Page, name: str) -> None:
        if not name.startswith("dialog"):
            width, height = page.evaluate("() => [innerWidth, document.documentElement.scrollHeight]")
            page.set_viewport_size({"width": width, "height": max(900, height)})
            page.wait_for_timeout(200)
        page.screenshot(path=self._folder / f"{name}.png")
        for misfit in page.evaluate(MISFITS):
            print(f"{name}: {misfit}", flush=True)
        for each in Axe().run(page).response["violations"]:
            if each["impact"] in ("serious", "critical"):
                print(f"{name}: {each['id']}: {each['nodes'][0]['html'][:200]}", flush=True)

    def _kill_engine(self, page: Page) -> None:
        busy = page.locator(".engine", has_text="3 running").locator(".name").first
        name = busy.inner_text()
        os.kill(engine_pids(self._command, [name])[name], signal.SIGKILL)


def open_operation(page: Page) -> None:
    """Filter the paths, and open one."""
    page.get_by_label("Filter paths").fill("chat/completions")
    page.locator(".operations summary", has_text="/v1/chat/completions").click()


def ask(page: Page) -> None:
    """Hold a conversation of two questions."""
    open_settings(page)
    set_up(page, max_tokens=60)
    for question in ("What is the capital of France?", "Write three lines about the sea."):
        send(page, question, 1)


def compare(page: Page) -> None:
    """Ask side by side."""
    page.get_by_role("button", name="Side by side").click()
    open_settings(page)
    set_up(page, max_tokens=40)
    page.locator("input[name=max_tokens]").nth(1).fill("40")
    page.locator("input[name=temperature]").nth(1).fill("1")
    send(page, "Name a color.", 2)


def complete(page: Page) -> None:
    """Complete a text, and show a token's alternatives."""
    set_up(page)
    page.get_by_role("button", name="Complete").click()
    page.locator(".figures", has_text="perplexity").wait_for()
    page.locator(".tokens .token").nth(3).click()


def open_settings(page: Page) -> None:
    """Open all settings of the panes, which a narrow window keeps closed."""
    page.locator(".pane").evaluate_all(
        "(panes) => panes.forEach((each) => { each.querySelector('details').open = true; })"
    )


def set_up(page: Page, **values: object) -> None:
    """Wait for the models, and fill settings."""
    for model in page.get_by_label("Model", exact=True).all():
        if model.is_visible():
            model.locator("option").first.wait_for(state="attached")
    for name, value in values.items():
        page.locator(f"input[name={name}]").first.fill(str(value))


def send(page: Page, question: str, num_panes: int) -> None:
    """Send a question and wait for the answers."""
    page.get_by_label("Message").fill(question)
    page.keyboard.press("Enter")
    for pane in range(num_panes):
        page.locator(".pane").nth(pane).locator(".figures", has_text="in the prompt").wait_for()


@contextlib.contextmanager
def stream(url: str, number: int) -> Iterator[None]:
    """Read a long answer in a thread until the end of the block."""
    end = threading.Event()

    def read() -> None:
        body: dict[str, Any] = {
            "model": httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"],
            "prompt": f"{number}. " + "The sea was calm that day. " * 20,
            "max_tokens": 1500,
            "ignore_eos": True,
            "stream": True,
            "priority": number % 3,
        }
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=None, trust_env=False) as response:
            for _ in response.iter_lines():
                if end.is_set():
                    return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(timeout=30)


if __name__ == "__main__":
    main()
