"""Tasks of a page's main thread, from Chromium's trace: wall time and the thread's own processor time."""

import contextlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline", "v8", "__metadata"]
TASK = "RunTask"
OTHER_TASKS = ("ThreadControllerImpl::RunTask", "Receive mojo message", "v8.callFunction")  # name nothing
NUM_PARTS = 4
PART_MS = 1.0  # below it a part is not named


@dataclass(frozen=True)
class Task:
    """One task: durations in ms, and what took most of its time (parts within parts count twice)."""

    wall_ms: float
    cpu_ms: float
    parts: dict[str, float]


@contextlib.contextmanager
def recorded_tasks(browser: Any, page: Any) -> Iterator[list[Task]]:
    """Record the tasks of a page; the list is filled at the end of the block, the longest first."""
    tasks: list[Task] = []
    browser.start_tracing(page=page, categories=CATEGORIES)
    try:
        yield tasks
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
        tasks.extend(sorted(_tasks(events), key=lambda task: -task.wall_ms))


def throttle(page: Any, rate: float) -> None:
    """Let the page's main thread run more slowly by a factor."""
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": rate})


def longest_cpu_ms(tasks: list[Task]) -> float:
    """Return the most processor time of any task, which other processes of the machine do not change."""
    return max((task.cpu_ms for task in tasks), default=0.0)


def _tasks(events: list[dict[str, Any]]) -> Iterator[Task]:
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    complete = [each for each in events if each.get("ph") == "X" and (each["pid"], each["tid"]) in threads]
    complete.sort(key=lambda each: (each["pid"], each["tid"], each["ts"]))
    for _, group in groupby(complete, key=lambda each: (each["pid"], each["tid"])):
        of_thread = list(group)
        starts = [each["ts"] for each in of_thread]
        for task in of_thread:
            if task["name"] == TASK:
                end = task["ts"] + task.get("dur", 0)
                within = of_thread[bisect_right(starts, task["ts"]) : bisect_right(starts, end)]
                yield Task(task.get("dur", 0) / 1000, task.get("tdur", 0) / 1000, _parts(within))


def _parts(events: list[dict[str, Any]]) -> dict[str, float]:
    durations: Counter[str] = Counter()
    for each in events:
        if each["name"] not in (TASK, *OTHER_TASKS):
            durations[each["name"]] += each.get("dur", 0) / 1000
    return {name: round(ms, 1) for name, ms in durations.most_common(NUM_PARTS) if ms >= PART_MS}
