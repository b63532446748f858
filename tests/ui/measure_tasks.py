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
from support.services.web_page import ask, choose_settings, wait_for_models

SETTLED_MS = 1500
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
            page = new_page(browser, options.throttle)
            measure(
                browser,
                page,
                f"load {view}",
                lambda view=view, page=page: page.goto(f"{options.url}/#{view}"),
                options.shown,
            )
            page.context.close()
        page = new_page(browser, options.throttle)
        page.goto(options.url)
        page.wait_for_timeout(SETTLED_MS)
        for name, step in STEPS.items():
            measure(browser, page, name, partial(step, page), options.shown)
        browser.close()


def new_page(browser: Any, options: argparse.Namespace) -> Any:
    """Open a picture of the service, in the process that will show its page, and slow that process down."""
    page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
    page.goto(f"{options.url}/ui/icon.svg")
    throttle(page, options.throttle)
    return page


def measure(browser: Any, page: Any, name: str, act: Callable[[], object], shown: int) -> None:
    """Do one step, and print its longest tasks."""
    with recorded_tasks(browser, page) as tasks:
        act()
        page.wait_for_timeout(SETTLED_MS)
    longest = [[round(task.wall_ms, 1), round(task.cpu_ms, 1), task.parts] for task in tasks[:shown]]
    print(json.dumps({name: longest}), flush=True)


def open_view(name: str) -> Callable[[Any], None]:
    """Return the step that opens a view by its link."""
    return lambda page: page.get_by_role("link", name=name, exact=True).click()


def side_by_side(page: Any) -> None:
    """Show the second pane."""
    wait_for_models(page)
    page.get_by_role("button", name="Side by side").click()


def chat(page: Any) -> None:
    """Ask the panes that are open, and wait for the answers."""
    choose_settings(page, max_tokens=60)
    ask(page, "Tell me a long story about the sea.")
    page.locator(".figures", has_text="in the prompt").first.wait_for()


def complete(page: Any) -> None:
    """Complete a text of 40 tokens."""
    wait_for_models(page)
    page.get_by_role("button", name="Complete").click()
    page.locator(".figures", has_text="perplexity").wait_for()


def paste(label: str) -> Callable[[Any], None]:
    """Return the step that pastes a megabyte without spaces into a field."""

    def step(page: Any) -> None:
        page.get_by_label(label).first.focus()
        page.keyboard.insert_text(LARGE)

    return step


def remove_all(page: Any) -> None:
    """Remove the long texts of all fields."""
    for each in page.get_by_role("button", name="Remove").all():
        if each.is_visible():
            each.click()


STEPS: dict[str, Callable[[Any], object]] = {
    "side by side": side_by_side,
    "answers": chat,
    "open tokens": open_view("Tokens"),
    "complete": complete,
    "alternatives": lambda page: page.locator(".tokens .token").nth(3).click(),
    "open live": open_view("Live"),
    "open requests": open_view("Requests"),
    "open a request": lambda page: page.locator(".trace tbody a").first.click(),
    "open API": open_view("API"),
    "filter": lambda page: page.get_by_label("Filter paths").fill("chat"),
    "open chat again": open_view("Chat"),
    "paste 1 MB": paste("Message"),
    "system prompt of 1 MB": paste("System prompt"),
    "remove": lambda page: [
        each.click() for each in page.get_by_role("button", name="Remove").all() if each.is_visible()
    ],
    "paste 1 MB again": paste("Message"),
    "send 1 MB": lambda page: page.get_by_role("button", name="Send", exact=True).click(),
    "edit 1 MB in its field": lambda page: page.get_by_role("button", name="Edit").last.click(),
}

if __name__ == "__main__":
    main()
