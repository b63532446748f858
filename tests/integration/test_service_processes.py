import contextlib
import json
import os
import re
import signal
import threading
import time

import httpx
import pytest
import ray
from ray import serve
from ray.serve.schema import ApplicationStatus

from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_llm_app
from rayinfer_deployments.engine.engine_replica import SERVE_NAMESPACE
from support.services.polling import wait_until
from support.services.service_client import descendants

SMALL = {"num_cpus": 0.1, "num_threads": 1}


@pytest.fixture
def mortal(deploy, tiny_models):
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 4096, "drain_timeout_s": 60.0}
    with deploy("mortal", [model]) as client:
        yield client


def engine_names(service):
    return service.label_values("rayinfer_kv_blocks_total", "engine")


def engine_actor(name):
    return ray.get_actor(name, namespace=SERVE_NAMESPACE)


def engine_pid(service):
    """Find the process of a service's only engine, by the name under which the metrics know it."""
    (name,) = engine_names(service)
    return ray.get(engine_actor(name).ping.remote())


def texts(lines):
    """The texts of a stream's chunks; its last word has to be that it is done."""
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event)["choices"][0]["text"] for event in events]


@pytest.mark.faults  # what tests/faults does under load, as F04
def test_a_stream_outlives_its_only_engine_while_newcomers_are_refused(mortal):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "temperature": 0, "stream": True}
    whole = "".join(texts(mortal.http.post("/v1/completions", json=body).text.splitlines()))
    victim = engine_pid(mortal)
    with mortal.http.stream("POST", "/v1/completions", json=body, timeout=120) as response:
        lines = response.iter_lines()
        first = next(lines)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not mortal.is_ready())  # requests before the router knows wait with the stream
        assert mortal.complete().status_code == 503
        assert mortal.complete().json()["error"]["code"] == "not_ready"
        assert "is gone" in mortal.http.get("/ready").json()["reasons"]["tiny"]
        assert "".join(texts([first, *lines])) == whole
    assert mortal.complete().status_code == 200
    assert engine_pid(mortal) != victim
    assert mortal.metric("rayinfer_migrations_total") == 1.0


@pytest.mark.faults  # what tests/faults does under load
def test_killing_one_of_two_engines_leaves_the_other_at_work(deploy, tiny_models):
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 512, "num_replicas": 2}
    with deploy("pair", [model]) as pair:
        wait_until(lambda: len(engine_names(pair)) == 2)
        victim = sorted(engine_names(pair))[0]
        os.kill(ray.get(engine_actor(victim).ping.remote()), signal.SIGKILL)
        wait_until(lambda: victim not in engine_names(pair))
        assert pair.is_ready()
        assert [pair.complete().status_code for _ in range(4)] == [200] * 4
        wait_until(lambda: len(engine_names(pair)) == 2)


def test_an_engine_does_not_outlive_its_replica(mortal):
    engine = engine_pid(mortal)
    (replica,) = (pid for pid, title in descendants(os.getpid()).items() if "ServeReplica:mortal:engine" in title)
    os.kill(replica, signal.SIGKILL)
    wait_until(lambda: engine not in descendants(os.getpid()))
    wait_until(lambda: mortal.complete().status_code == 200)
    assert engine_pid(mortal) != engine


@pytest.mark.faults  # what tests/faults does under load, as F13
def test_a_killed_router_comes_back_and_its_clients_blocks_are_free(mortal):
    (name,) = engine_names(mortal)
    engine = engine_actor(name)
    (router,) = (pid for pid, title in descendants(os.getpid()).items() if "ServeReplica:mortal:router" in title)
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 7000, "ignore_eos": True, "stream": True}
    with (
        contextlib.suppress(httpx.TransportError),
        mortal.http.stream("POST", "/v1/completions", json=body) as response,
    ):
        events = response.iter_lines()
        next(events)
        assert ray.get(engine.stats.remote()).kv_blocks_used > 0
        os.kill(router, signal.SIGKILL)
        for _ in events:
            pass
    wait_until(mortal.is_ready)
    assert engine_names(mortal) == {name}
    wait_until(lambda: ray.get(engine.stats.remote()).kv_blocks_used == 0, 5.0)
    assert mortal.complete().status_code == 200


def test_deleting_an_application_lets_its_streams_end_and_leaves_no_process(mortal):
    engine = engine_pid(mortal)
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 800, "ignore_eos": True, "stream": True}
    with mortal.http.stream("POST", "/v1/completions", json=body) as response:
        events = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        next(events)
        deleting = threading.Thread(target=serve.delete, args=("mortal",))
        deleting.start()
        *_, last, done = events
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"
    deleting.join()
    wait_until(lambda: engine not in descendants(os.getpid()))
    wait_until(lambda: not any("ServeReplica:mortal" in title for title in descendants(os.getpid()).values()))


def test_a_model_that_cannot_be_loaded_fails_its_deployment_within_seconds_and_says_why(cluster):
    args = llm_app_args({"models": [SMALL | {"name": "hopeless", "model": "/nowhere/at-all"}]})
    started = time.monotonic()
    try:
        with pytest.raises(RuntimeError):
            serve.run(build_llm_app(args), name="hopeless", route_prefix="/hopeless")
        overview = serve.status().applications["hopeless"]
    finally:
        serve.delete("hopeless")
    assert time.monotonic() - started < 60
    assert overview.status == ApplicationStatus.DEPLOY_FAILED
    messages = "\n".join(deployment.message for deployment in overview.deployments.values())
    assert re.search(r"^rayinfer\.errors\.ModelNotFound: there is no model '/nowhere/at-all'", messages, re.MULTILINE)
