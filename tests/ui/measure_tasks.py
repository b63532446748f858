"""Longest tasks of the page's main thread, step by step through every view, with its processor throttled.

    PYTHONPATH=build/ui:tests .venv/bin/python tests/ui/measure_tasks.py http://127.0.0.1:8000 --throttle 2

The service must run. Each step is traced and printed with its longest tasks: wall and processor time in milliseconds,
and what took most of it.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from playwright.sync_api import sync_playwright

from support.services.page_tasks import recorded_tasks, throttle

SETTLED_MS = 2000
SHOWN_TASKS = 3
LARGE = "A" * 1_000_000


def main() -> None:
    """Measure, and print a line of JSON for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--throttle", type=float, default=2.0)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--shown", type=int, default=SHOWN_TASKS)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for view in ("chat", "tokens", "live", "requests", "docs"):
            page, address = new_page(browser, options), f"{options.url}/#{view}"
            measure(browser, page, f"load {view}", partial(page.goto, address), options)
            page.context.close()
        page = new_page(browser, options)
        page.goto(options.url)
        page.wait_for_timeout(SETTLED_MS)
        for name, step in STEPS.items():
            measure(browser, page, name, step(page), options)
        browser.close()


def new_page(browser: Any, options: argparse.Namespace) -> Any:
    """Open a picture of the service, in the process that will show its page, and slow that process down."""
    page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
    page.goto(f"{options.url}/ui/icon.svg")
    throttle(page, options.throttle)
    return page


def measure(browser: Any, page: Any, name: str, act: Callable[[], object], options: argparse.Namespace) -> None:
    """Do one step, and print its longest tasks."""
    with recorded_tasks(browser, page) as tasks:
        act()
        page.wait_for_timeout(SETTLED_MS)
    longest = [[round(task.wall_ms, 1), round(task.cpu_ms, 1), task.parts] for task in tasks[: options.shown]]
    print(json.dumps({name: longest}), flush=True)


def click(locator: Any) -> Callable[[], object]:
    """Find an element, and return the click on its place: the click itself must not lay out the page for a test."""
    locator.wait_for()
    locator.scroll_into_view_if_needed()
    box = locator.bounding_box()
    return partial(locator.page.mouse.click, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def view(name: str) -> Callable[[Any], Callable[[], object]]:
    """Return the step that opens a view by its link."""
    return lambda page: click(page.get_by_role("link", name=name, exact=True))


def named(name: str) -> Callable[[Any], Callable[[], object]]:
    """Return the step that clicks the first button of a name."""
    return lambda page: click(page.get_by_role("button", name=name, exact=True).filter(visible=True).first)


def ask_both(page: Any) -> Callable[[], object]:
    """Write a question, for answers that go on to the end of the step."""
    for each in page.locator("input[name=max_tokens]").all():
        each.fill("400")
    page.get_by_label("Message").fill("Tell me a long story about the sea.")
    return partial(page.keyboard.press, "Enter")


def paste(label: str) -> Callable[[Any], Callable[[], object]]:
    """Return the step that pastes a megabyte without spaces into a field."""

    def step(page: Any) -> Callable[[], object]:
        page.get_by_label(label).first.focus()
        return partial(page.keyboard.insert_text, LARGE)

    return step


# What is prepared is not measured; what it returns is.
STEPS: dict[str, Callable[[Any], Callable[[], object]]] = {
    "side by side": named("Side by side"),
    "two answers": ask_both,
    "stop": named("Stop"),
    "open tokens": view("Tokens"),
    "complete": named("Complete"),
    "alternatives": lambda page: click(page.locator(".tokens .token").nth(3)),
    "open live": view("Live"),
    "open requests": view("Requests"),
    "open a request": lambda page: click(page.locator(".trace tbody a").first),
    "open API": view("API"),
    "open an operation": lambda page: click(page.locator(".operations summary", has_text="/v1/chat/completions").first),
    "open chat again": view("Chat"),
    "paste 1 MB": paste("Message"),
    "send 1 MB": named("Send"),
    "system prompt of 1 MB": paste("System prompt"),
    "export": named("Python"),
    "close": named("Close"),
    "edit a message of 1 MB": lambda page: click(page.locator(".message .edit").nth(2)),
    "put it into its field": lambda page: click(page.locator(".message .kept").get_by_role("button", name="Edit")),
}

if __name__ == "__main__":
    main()
