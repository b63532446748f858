"""Load on a service during operations, and its engines and routers."""

import itertools
import os
import threading

import httpx
from prometheus_client.parser import text_string_to_metric_families

from support.services.polling import wait_until
from support.services.service_client import descendants

NUM_CLIENTS = 4


def engine_names(service, model=None):
    reports = text_string_to_metric_families(service.http.get("/metrics").text)
    samples = [sample for family in reports for sample in family.samples if sample.name == "rayinfer_kv_blocks_total"]
    return {sample.labels["engine"] for sample in samples if model in (None, sample.labels["model_name"])}


def router_pids(application):
    return {pid for pid, title in descendants(os.getpid()).items() if f"ServeReplica:{application}:router" in title}


class Load:
    """Clients that ask without a pause, half of them for streams, half on connections that they keep."""

    def __init__(self, url):
        self._url, self._is_over = url, threading.Event()
        self.texts, self.failures, self._numbers = set(), [], itertools.count()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(NUM_CLIENTS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self.texts) > 0 or self.failures)
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def num_asked(self):
        return next(self._numbers)

    def _ask(self, client):
        limits = httpx.Limits(max_keepalive_connections=client % 2)
        body = {"model": "tiny", "prompt": "Once", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False, limits=limits) as http:
            while not self._is_over.is_set():
                next(self._numbers)
                try:
                    answer = http.post("/v1/completions", json=body | {"stream": client < NUM_CLIENTS // 2})
                except httpx.TransportError as error:
                    self.failures.append(repr(error))
                    continue
                if answer.status_code == 200 and "error" not in answer.text:
                    self.texts.add(text_of(answer.text))
                else:
                    self.failures.append(f"{answer.status_code}: {answer.text}")


def text_of(answer):
    """Read a completion's text, streamed or not."""
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: {")] or [answer]
    return "".join(httpx.Response(200, text=event).json()["choices"][0]["text"] for event in events)
