"""Engines come with the load and go without it, down to none; no client notices but by the time it waits."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.operations.placement_watcher import InsufficientResources
from rayinfer_deployments.operations.service_operations import ServiceOperations
from support.services.polling import wait_until
from support.services.service_load import engine_names

SMALL = {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0}
IDLE_S = 5
MORE_THAN_HALF_A_MACHINE = 1.1  # CPUs

# Until an engine has come or gone; the delays that are set here are a few seconds, a busy machine adds to them.
ENGINE_S = 240
BODY = {"model": "tiny", "prompt": "Once", "ignore_eos": True, "temperature": 0}


def num_engines(service):
    return len(engine_names(service))


class Clients:
    """Send requests without a pause until stopped; half of them for streams."""

    def __init__(self, service, number, max_tokens):
        self._url, self._body = service.http.base_url, BODY | {"max_tokens": max_tokens}
        self._is_over = threading.Event()
        self.texts, self.failures = [], []
        self._threads = [threading.Thread(target=self._ask, args=(client,)) for client in range(number)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join(240)

    def _ask(self, client):
        with httpx.Client(base_url=self._url, timeout=240, trust_env=False) as http:
            while not self._is_over.is_set():
                try:
                    answer = http.post("/v1/completions", json=self._body | {"stream": client % 2 == 0})
                except httpx.TransportError as error:
                    self.failures.append(repr(error))
                    continue
                if answer.status_code == 200 and "error" not in answer.text:
                    self.texts.append(answer.text)
                else:
                    self.failures.append(f"{answer.status_code}: {answer.text}")


def report(found, start_s):
    """Report times beside what an engine takes in any case; `pytest -rP` shows them."""
    print(f"{found}; the service with its first engine took {start_s:.1f} s to start")


@pytest.fixture
def model(tiny_models):
    return {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 2048, "dtype": "float32"}


@pytest.mark.faults
def test_a_burst_brings_a_second_engine_which_goes_when_it_is_over(deploy, model):
    bounds = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 0.5, "downscale_delay_s": 4}
    busy = model | {"max_num_seqs": 4, "autoscaling": bounds | {"target_waiting_tokens": 4, "ttft_objective_s": 0.2}}
    began = time.monotonic()
    with deploy("burst", [busy]) as service:
        start_s = time.monotonic() - began
        assert num_engines(service) == 1
        with Clients(service, 1, max_tokens=40) as steady:
            with Clients(service, 12, max_tokens=200) as burst:
                second_s = wait_until(lambda: num_engines(service) == 2, ENGINE_S)
            gone_s = wait_until(lambda: num_engines(service) == 1, ENGINE_S)
    report(f"second engine {second_s:.1f} s after the burst, gone {gone_s:.1f} s after it", start_s)
    assert (steady.failures, burst.failures) == ([], [])
    assert steady.texts
    assert burst.texts


@pytest.mark.faults
def test_a_model_without_requests_has_no_engine_and_gets_one_with_the_next(deploy, model):
    scaling = {"min_replicas": 0, "max_replicas": 1, "idle_timeout_s": IDLE_S}
    models = [SMALL | model | {"autoscaling": scaling, "num_cpus": MORE_THAN_HALF_A_MACHINE}]
    began = time.monotonic()
    with deploy("idle", models) as service:
        start_s = time.monotonic() - began
        gone_s = wait_until(lambda: num_engines(service) == 0, ENGINE_S)
        assert service.is_ready()
        with Clients(service, 4, max_tokens=8) as clients:  # all of them wait for the one engine
            answers_s = wait_until(lambda: len(clients.texts) >= 4, ENGINE_S)
        report(f"no engine {gone_s:.1f} s after the start; from no engine to answers: {answers_s:.1f} s", start_s)
        assert clients.failures == []
        assert num_engines(service) == 1
        operations = ServiceOperations("idle", llm_app_args({"models": models}), route_prefix="/idle")
        asked = time.monotonic()
        with pytest.raises(
            InsufficientResources,
            match=f"no resources for 1 engine: no node has {MORE_THAN_HALF_A_MACHINE:g}.* CPU free",
        ):
            asyncio.run(operations.scale(2))
        assert time.monotonic() - asked < 100  # ten times what it takes
        kept = asyncio.run(operations.scale(1))["tiny"]
        time.sleep(IDLE_S + 3)  # longer than it would stay by itself
        assert asyncio.run(operations.scale(None)) == {"tiny": kept}
        wait_until(lambda: num_engines(service) == 0, ENGINE_S)


@pytest.mark.faults
def test_a_burst_that_meets_no_engine_is_answered_completely_by_two_that_start_at_once(deploy, model):
    scaling = {"min_replicas": 0, "max_replicas": 2, "idle_timeout_s": IDLE_S, "target_waiting_tokens": 8}
    scaling |= {"upscale_delay_s": 1000.0}  # a second engine comes for what waits without any, or not at all
    limits = {"max_waiting_requests": 20}
    with deploy("cold-burst", [model | {"autoscaling": scaling}], limits=limits) as service:
        wait_until(lambda: num_engines(service) == 0, ENGINE_S)
        with ThreadPoolExecutor(60) as clients:
            answers = list(clients.map(lambda _: ask_once(service.base_url), range(60)))
        wait_until(
            lambda: num_engines(service) == 2, ENGINE_S
        )  # the first may have answered all before the second came
    answered = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answered) == 40  # 20 for each engine that may come
    assert {answer.json()["usage"]["completion_tokens"] for answer in answered} == {8}
    assert {answer.status_code for answer in refused} == {503}
    assert all(float(answer.headers["retry-after"]) >= 1 and answer.elapsed.total_seconds() < 5 for answer in refused)


def ask_once(url):
    return httpx.post(f"{url}/v1/completions", json=BODY | {"max_tokens": 8}, timeout=240, trust_env=False)
