"""Figures of the web page: weight, first paint, long tasks, frames a second, and what open live views cost a router.

    PYTHONPATH=build/ui:tests .venv/bin/python tests/ui/measure_page.py http://127.0.0.1:8000 --router-pid PID

The service must run, best with nothing beside it. Frames are counted while the answer of one recorded stream is
replayed to a chat at the rate of 32 such streams.
"""

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import sync_playwright

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import RequestOutput
from rayinfer.protocols import GenerationRequest
from rayinfer.servers.app import build_app
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_generator import FakeGenerator
from support.services.page_tasks import longest_cpu_ms, recorded_tasks
from support.services.served_application import served
from support.tiny_models.tiny_checkpoints import save_tokenizer

NUM_STREAMS = 32
RECORDED_TOKENS = 200
REPLAYED_S = 8.0
NUM_TABS = 20
TABS_S = 20.0
VIEWS = ("chat", "tokens", "live", "requests", "docs")

WATCH = """() => {
    window.longTasks = [];
    const note = (list) => window.longTasks.push(...list.getEntries().map((each) => [each.startTime, each.duration]));
    new PerformanceObserver(note).observe({ type: "longtask", buffered: true });
    window.frames_ = [];
    const count = (now) => { window.frames_.push(now); requestAnimationFrame(count); };
    requestAnimationFrame(count);
}"""
WEIGHT = """() => performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
    .filter((each) => each.name.includes("/ui/") || each.entryType === "navigation")
    .reduce((sum, each) => sum + each.encodedBodySize, 0)"""
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@dataclass(kw_only=True)
class PacedGenerator(FakeGenerator):
    """Generator that replays pieces of text at a rate, again and again."""

    rate: float = 100.0

    async def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield a piece at each of its times; those that are late come at once."""
        start_s, number = time.monotonic(), 0
        while (elapsed := time.monotonic() - start_s) < REPLAYED_S:
            while number < elapsed * self.rate:
                output = self._output(request, number % len(self.pieces))
                for completion in output.outputs:
                    completion.finish_reason = None
                output.finished = False
                yield output
                number += 1
            await asyncio.sleep(0.002)
        yield self._output(request, len(self.pieces) - 1)


def main() -> None:
    """Measure, and print lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--router-pid", type=int)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        report(page_figures(browser, options.url))
        report(streaming_figures(browser, options.url))
        rate, pieces = recorded_stream(options.url)
        report({"recorded_tokens_per_s": rate, **replay_figures(browser, rate * NUM_STREAMS, pieces)})
        if options.router_pid is not None:
            report(tab_figures(browser, options.url, psutil.Process(options.router_pid)))
        browser.close()


def report(figures: dict[str, Any]) -> None:
    """Print figures as soon as they are there."""
    print(json.dumps(figures), flush=True)


def page_figures(browser: Any, url: str) -> dict[str, Any]:
    """Open each view in a browser without a cache."""
    paints, weights = {}, {}
    for view in VIEWS:
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.goto(f"{url}/#{view}")
        page.wait_for_timeout(1500)
        paints[view], weights[view] = round(page.evaluate(PAINT)), page.evaluate(WEIGHT)
        context.close()
    return {"first_contentful_paint_ms": paints, "page_bytes": weights}


def streaming_figures(browser: Any, url: str) -> dict[str, Any]:
    """Chat with the model, with a live view beside it, and collect long tasks of both."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    live, chat = context.new_page(), context.new_page()
    for page, view in ((live, "live"), (chat, "chat")):
        page.goto(f"{url}/#{view}")
        page.wait_for_timeout(1000)
        page.evaluate(WATCH)
    with recorded_tasks(browser, chat) as tasks:
        chat.get_by_label("Message").fill("Tell me a long story about the sea.")
        chat.keyboard.press("Enter")
        chat.wait_for_timeout(8000)
        chat.keyboard.press("Escape")
    found = {f"long_tasks_ms_{name}": long_tasks(page) for name, page in (("chat", chat), ("live", live))}
    context.close()
    # The model's threads take the cores from a task now and then: its own processor time is what the page can change.
    return {**found, "longest_task_processor_ms_chat": round(longest_cpu_ms(tasks), 1)}


def long_tasks(page: Any) -> list[str]:
    """List tasks over 50 ms: when they began after the page's start, and how long they took."""
    return [f"{duration:.0f} at {start:.0f}" for start, duration in page.evaluate("() => window.longTasks")]


def recorded_stream(url: str) -> tuple[float, list[str]]:
    """Record one stream: its rate and its pieces of text."""
    model = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"]
    body = {"model": model, "stream": True, "max_tokens": RECORDED_TOKENS, "prompt": "The sea", "ignore_eos": True}
    pieces: list[str] = []
    first_s = 0.0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120, trust_env=False) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and (text := json.loads(line[6:])["choices"][0]["text"]):
                first_s = first_s or time.monotonic()
                pieces.append(text)
    return round((len(pieces) - 1) / (time.monotonic() - first_s), 1), pieces


def replay_figures(browser: Any, rate: float, pieces: list[str]) -> dict[str, Any]:
    """Count frames while a chat gets tokens at a rate."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), 384)
        model = ServedModel(
            name="replay",
            generator=PacedGenerator(pieces=pieces, rate=rate, max_model_len=10**6),
            tokenizer=Tokenizer.from_folder(Path(folder)),
            chat_template=ChatTemplate.from_folder(Path(folder)),
            created=0,
        )
    with served(build_app({"replay": model}, ServiceMetrics())) as url:
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.goto(url)
        page.wait_for_timeout(1000)
        page.evaluate(WATCH)
        page.get_by_label("Message").fill("Go")
        page.keyboard.press("Enter")
        page.wait_for_timeout(1500)
        start = page.evaluate("() => window.frames_.length")
        page.wait_for_timeout(5000)
        times = page.evaluate("() => window.frames_")[start:]
        tasks = long_tasks(page)
        page.locator(".figures", has_text="tokens/s").wait_for()
        shown = page.locator(".figures").first.inner_text()
        context.close()
    gaps = sorted(after - before for before, after in pairwise(times))
    return {
        "replayed_tokens_per_s": round(rate, 1),
        "frames_per_s": round((len(times) - 1) / (times[-1] - times[0]) * 1000, 1),
        "frame_gap_p99_ms": round(gaps[int(len(gaps) * 0.99)], 1),
        "long_tasks_ms_replay": tasks,
        "shown": shown,
    }


def tab_figures(browser: Any, url: str, router: psutil.Process) -> dict[str, Any]:
    """Compare the router's processor time without a live view, with 20 tabs, and with 20 streams of their own."""
    idle = cpu_share(router)
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    pages = [context.new_page() for _ in range(NUM_TABS)]
    for page in pages:
        page.goto(f"{url}/#live")
    pages[-1].wait_for_timeout(3000)
    tabs = cpu_share(router)
    context.close()
    end = threading.Event()
    threads = [threading.Thread(target=read_live, args=(url, end), daemon=True) for _ in range(NUM_TABS)]
    for thread in threads:
        thread.start()
    time.sleep(3.0)
    streams = cpu_share(router)
    end.set()
    return {"router_idle_percent": idle, "router_20_tabs_percent": tabs, "router_20_streams_percent": streams}


def read_live(url: str, end: threading.Event) -> None:
    """Read samples until the end."""
    while not end.is_set():
        with httpx.stream("GET", f"{url}/live", timeout=30, trust_env=False) as response:
            for _ in response.iter_lines():
                if end.is_set():
                    return


def cpu_share(process: psutil.Process) -> float:
    """Return the processor time of some seconds, in percent of a core."""
    before = process.cpu_times()
    time.sleep(TABS_S)
    after = process.cpu_times()
    return round(100 * (after.user + after.system - before.user - before.system) / TABS_S, 2)


if __name__ == "__main__":
    main()
