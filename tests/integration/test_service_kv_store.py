"""Engines of a service that share a KV block store: killed, replaced, and started again."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
import ray

from rayinfer.kv_store.store_files import list_stores
from rayinfer_deployments.engine.engine_replica import SERVE_NAMESPACE
from support.services.polling import wait_until
from support.services.service_load import engine_names

PROMPTS = [[3 + (start + 7 * number) % 90 for number in range(300)] for start in range(2)]
NUM_BLOCKS = 300 // 16
BLOCK_BYTES = 4096  # at least: slots begin at pages


@pytest.fixture
def model(tiny_models, tmp_path):
    return {
        "name": "tiny",
        "model": str(tiny_models["tiny"]),
        "num_kv_blocks": 1024,
        "kv_store_gib": 0.02,
        "kv_store_disk_gib": 0.02,
        "kv_store_folder": str(tmp_path / "disk"),
    }


def ask(service, prompt, **fields):
    """Complete a prompt; returns the text and how many of its tokens were not computed."""
    answer = service.complete(prompt, **fields).json()
    return answer["choices"][0]["text"], (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def kill(engine):
    os.kill(ray.get(ray.get_actor(engine, namespace=SERVE_NAMESPACE).ping.remote()), signal.SIGKILL)


def hits(service, tier):
    return service.metric("rayinfer_kv_store_hits_total", tier=tier)


class Stream(threading.Thread):
    """A client that reads a long answer."""

    def __init__(self, service, prompt):
        super().__init__()
        self._service, self._prompt = service, prompt
        self.text = ""
        self.start()

    def run(self):
        body = {"model": "tiny", "prompt": self._prompt, "max_tokens": 3000, "ignore_eos": True, "temperature": 0}
        with self._service.http.stream("POST", "/v1/completions", json=body | {"stream": True}, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]


@pytest.mark.faults
def test_streams_of_a_killed_engine_load_their_prefixes_and_so_do_engines_that_start_later(deploy, model):
    with deploy("shared", [model | {"num_replicas": 2}]) as service:
        wait_until(lambda: len(engine_names(service)) == 2)
        streams = [Stream(service, prompt) for prompt in PROMPTS]
        wait_until(lambda: service.metric("rayinfer_kv_store_blocks_total", event="stored") >= 2 * NUM_BLOCKS)
        victim, other = sorted(engine_names(service))
        kill(victim)
        for stream in streams:
            stream.join()
        assert service.metric("rayinfer_migrations_total") == 1.0
        assert hits(service, "memory") >= 16 * NUM_BLOCKS
        wait_until(lambda: len(engine_names(service)) == 2)
        kill(other)  # so the one that came remains, and has computed neither prompt
        wait_until(lambda: other not in engine_names(service))
        for stream, prompt in zip(streams, PROMPTS, strict=True):
            assert ask(service, prompt, max_tokens=3000) == (stream.text, 16 * NUM_BLOCKS)


@pytest.mark.faults
def test_a_service_that_starts_again_finds_its_prefixes_on_the_disk(deploy, model, shared_memory):
    with deploy("before", [model]) as service:
        wanted = ask(service, PROMPTS[0])
        wait_until(lambda: list_stores(Path(model["kv_store_folder"]))[0].num_bytes > NUM_BLOCKS * BLOCK_BYTES)
    wait_until(lambda: not list(shared_memory.iterdir()))  # the last engine has freed it
    with deploy("after", [model]) as service:
        assert ask(service, PROMPTS[0]) == (wanted[0], 16 * NUM_BLOCKS)
        assert hits(service, "disk") == 16 * NUM_BLOCKS
