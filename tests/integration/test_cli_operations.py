"""Operators' commands, each in a process of its own, on a service of the throughput profile."""

import json
import signal
from pathlib import Path

import httpx
import pytest
import yaml

from rayinfer.access.key_file import KeyFile
from support.faults.cli_processes import run_cli, serving
from support.services.polling import wait_until
from support.tiny_models.tiny_checkpoints import make_tiny_llama

ENGINE = ("--num-kv-blocks", 256, "--num-threads", 1, "--name", "tiny")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def answers(url, key, **fields):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 5, "ignore_eos": True} | fields
    return httpx.post(f"{url}/v1/completions", json=body, headers={"x-api-key": key}, timeout=60, trust_env=False)


def guesses(url, address, num_guesses):
    """Send wrong keys from an address, each with another one forwarded; returns the statuses."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as client:
        forwarded = [{"x-api-key": "ri-wrong", "x-forwarded-for": f"9.9.9.{each}"} for each in range(num_guesses)]
        return [client.get(f"{url}/v1/models", headers=headers).status_code for headers in forwarded]


@pytest.mark.faults  # it breaks nothing, but takes as long
def test_a_service_behind_haproxy_is_operated_and_leaves_nothing_behind(model, tmp_path):
    def run(*arguments):
        return run_cli(*arguments, cache=tmp_path)

    keys = KeyFile(tmp_path / "keys.jsonl")
    key = keys.create("alice")
    switches = ("--profile", "throughput", "--routers", 2, "--api-keys", keys.path)
    with serving(model, *ENGINE, *switches, cache=tmp_path) as service:
        service.wait_for_line("ready: tiny")
        for _ in range(4):  # the routers take turns
            answer = answers(service.url, key)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 5
        assert answers(service.url, key, stream=True).text.endswith("data: [DONE]\n\n")
        assert httpx.get(f"{service.url}/v1/models", trust_env=False).status_code == 401
        statuses = guesses(service.url, "127.0.0.2", 2 * 20 + 5)  # each router counts by itself
        assert set(statuses[:20]) == {401}
        assert statuses[-1] == 429
        assert guesses(service.url, "127.0.0.3", 2) == [401, 401]
        assert answers(service.url, key).status_code == 200

        (haproxy,) = (process for process in service.processes() if "-f /tmp/rayinfer-" in process.title)
        config = Path(haproxy.title.partition("-f ")[2].split()[0])
        assert config.exists()
        roles = [process["role"] for process in json.loads(run("ps", "--json").stdout)]
        assert (roles.count("router"), roles.count("engine"), "proxy" in roles) == (2, 1, True)

        shown = run("status", "--json")
        (report,) = json.loads(shown.stdout)
        assert (shown.returncode, report["ready"], report["state"], len(report["routers"])) == (0, True, "RUNNING", 2)
        assert run("pause").stdout == "pause: tiny\n"
        wait_until(lambda: run("status").returncode == 1)
        assert "tiny: paused" in run("status", "--port", service.port).stdout
        assert run("resume", "--model", "tiny").returncode == 0
        refused = run("wake", "--model", "unknown")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "unknown" in refused.stderr

        limits = yaml.safe_load(run("limits", "--set", "max_waiting_requests=3").stdout)
        assert limits["max_waiting_requests"] == 3
        assert yaml.safe_load(run("limits").stdout) == limits
        wait_until(lambda: run("status").returncode == 0)

        processes = service.processes()
        assert service.stop(signal.SIGINT) == 0
        wait_until(lambda: not any(process.is_alive for process in processes), 30.0)
        assert not config.parent.parent.exists()
        assert list((tmp_path / "services").glob("*.sock")) == []

    gone = run("status")
    assert (gone.returncode, gone.stdout) == (1, "no rayinfer service runs on this machine\n")
    assert "no rayinfer service runs" in run("pause").stderr
