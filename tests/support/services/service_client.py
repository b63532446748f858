"""Client of a running service: requests, metrics, and its processes."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 60.0  # a machine that is shared with other work is slow; tests assert on facts, not on speed


class ServiceClient:
    """Client of one application."""

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


def descendants(pid: int) -> dict[int, str]:
    """Return the living processes below one process by their ids, with their titles."""
    titles = {}
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if title := " ".join(process.cmdline()).strip():
                titles[process.pid] = title
    return titles
