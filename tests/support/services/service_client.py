"""A test's view of a running service: its address, its metrics, and the processes behind it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 60.0  # a machine that is shared with other work is slow; tests assert on facts, not on speed


class ServiceClient:
    """Speaks to one application."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    @property
    def base_url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    def is_ready(self) -> bool:
        return self.http.get("/ready").status_code == 200

    def complete(self, prompt: Any = "Once upon a time", model: str = "tiny", **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields
        return self.http.post("/v1/completions", json=body)

    def stream(self, **fields: Any) -> Iterator[dict[str, Any]]:
        """Yield the choices of a streamed completion's chunks."""
        for line in self.complete(**fields, stream=True).text.splitlines():
            if line.startswith("data: {"):
                yield from json.loads(line.removeprefix("data: "))["choices"]

    def text_of(self, **fields: Any) -> str:
        response = self.complete(**fields)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def metric(self, name: str, **labels: str) -> float:
        """Sum a metric's samples that carry these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.http.get("/metrics").text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def label_values(self, name: str, label: str) -> set[str]:
        """Collect the values of one label of a metric."""
        families = text_string_to_metric_families(self.http.get("/metrics").text)
        return {sample.labels[label] for family in families for sample in family.samples if sample.name == name}

    @property
    def kv_blocks_used(self) -> float:
        return self.metric("rayinfer_kv_blocks_used")


def wait_until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> float:
    """Wait for something to become true; returns how long it took."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < timeout_s, f"{condition} was not met within {timeout_s} s"
        time.sleep(0.05)
    return time.monotonic() - started


def process_titles() -> Mapping[int, str]:
    """Every living process of this machine by its id."""
    titles = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            titles[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
    return {pid: title.strip() for pid, title in titles.items() if title.strip()}


def descendants(pid: int) -> dict[int, str]:
    """The living processes below one process by their ids, with their titles."""
    parents = {}
    titles = process_titles()
    for child in titles:
        try:
            parents[child] = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in family} - family
        if not more:
            return {child: titles[child] for child in family - {pid}}
        family |= more
