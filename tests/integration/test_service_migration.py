"""Engines are killed and frozen under streams of all kinds; clients compare what they get with what they got before."""

import json
import os
import random
import signal
import threading
import time

import pytest
import ray

from rayinfer_deployments.engine_replica import SERVE_NAMESPACE
from service_client import wait_until

KINDS = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 0.7, "seed": 8, "presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    {"temperature": 0.8, "seed": 9, "n": 3},
    {"temperature": 0, "stop": ["zzzz never", "qqqq"]},
    {"temperature": 0, "logprobs": 2},
]
NUM_TOKENS = 250


@pytest.fixture(scope="module")
def pair(deploy, tiny_models):
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 4096, "num_replicas": 2}
    with deploy("pair", [model | {"dtype": "float32"}]) as client:
        wait_until(lambda: len(engines(client)) == 2)
        yield client


def engines(service):
    return service.label_values("rayinfer_kv_blocks_total", "engine")


def pid_of(engine):
    return ray.get(ray.get_actor(engine, namespace=SERVE_NAMESPACE).ping.remote())


def body(number):
    settings = KINDS[number % len(KINDS)]
    prompt = f"Story {number}: once upon a time"
    return {"model": "tiny", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True, **settings}


class Client(threading.Thread):
    """Streams one answer, and keeps what each choice said and the longest time without a chunk."""

    def __init__(self, service, number):
        super().__init__(daemon=True)
        self.service, self.number = service, number
        self.answer, self.status, self.longest_gap_s = {}, None, 0.0
        self.start()

    def run(self):
        request = body(self.number) | {"stream": True, "stream_options": {"include_usage": True}}
        with self.service.http.stream("POST", "/v1/completions", json=request, timeout=120) as response:
            self.status, last = response.status_code, time.monotonic()
            for line in response.iter_lines():
                self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - last)
                last = time.monotonic()
                if line.startswith("data: {"):
                    self.note(json.loads(line.removeprefix("data: ")))
                elif line:
                    self.answer["done"] = line

    def note(self, event):
        if "error" in event:
            self.answer["error"] = event["error"]
            return
        for choice in event["choices"]:
            text, reason = self.answer.get(choice["index"], ("", None))
            self.answer[choice["index"]] = (text + choice["text"], choice["finish_reason"] or reason)
        if event.get("usage"):
            self.answer["usage"] = event["usage"]["completion_tokens"]


def answers(service, numbers, while_running=lambda: None):
    """Have these streams run side by side; returns what they said."""
    clients = [Client(service, number) for number in numbers]
    while_running()
    for client in clients:
        client.join(120)
    assert [client.status for client in clients] == [200] * len(clients)
    return [client.answer for client in clients], max(client.longest_gap_s for client in clients)


def test_no_token_is_lost_or_wrong_when_engines_are_killed_under_mixed_streams(pair):
    numbers, draw = range(12), random.Random(3)
    expected, _ = answers(pair, numbers)
    assert all(answer["done"] == "data: [DONE]" and "usage" in answer for answer in expected)

    def kill():
        wait_until(lambda: len(engines(pair)) == 2)
        time.sleep(draw.uniform(0.05, 0.4))
        os.kill(pid_of(draw.choice(sorted(engines(pair)))), signal.SIGKILL)

    for _ in range(3):
        wait_until(lambda: len(engines(pair)) == 2)
        before = pair.metric("rayinfer_migrations_total")
        got, _ = answers(pair, numbers, while_running=kill)
        assert got == expected
        assert pair.metric("rayinfer_migrations_total") > before, "the engine was killed too late"


def test_streams_of_a_frozen_engine_go_on_and_what_it_says_later_reaches_nobody(pair):
    wait_until(lambda: len(engines(pair)) == 2)
    expected, _ = answers(pair, range(6))
    frozen = []

    def freeze():
        time.sleep(0.1)
        frozen.append(pid_of(sorted(engines(pair))[0]))
        os.kill(frozen[0], signal.SIGSTOP)

    got, gap_s = answers(pair, range(6), while_running=freeze)
    assert got == expected
    assert gap_s > 1.0, "nothing was frozen"
    os.kill(frozen[0], signal.SIGCONT)
    wait_until(lambda: len(engines(pair)) == 2)
    got, _ = answers(pair, range(6))
    assert got == expected
