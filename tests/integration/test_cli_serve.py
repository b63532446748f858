import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import pytest

import rayinfer_kernels
from support.faults.cli_processes import is_listening, processes_with, run_cli, serving
from support.services.free_ports import free_port
from support.tiny_models.tiny_checkpoints import make_tiny_llama

ENGINE = ("--num-kv-blocks", 256, "--num-threads", 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def copy_with(model, tmp_path, name, change):
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(change(file.read_bytes()) if file.name == name else file.read_bytes())
    return folder


@pytest.fixture
def compiled(cache, kernel_folder):
    """Spare the service the compiler."""
    cache.mkdir()
    (cache / "kernels").symlink_to(kernel_folder)


def assert_all_gone(processes, started):
    while any(process.is_alive for process in processes):
        assert time.monotonic() - started < 30, [process for process in processes if process.is_alive]
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "num_ranks"), [pytest.param(signal.SIGINT, 1, marks=pytest.mark.faults), (signal.SIGTERM, 2)]
)
@pytest.mark.usefixtures("compiled")
def test_a_service_answers_is_listed_and_leaves_nothing_behind(model, cache, number, num_ranks):
    switches = ("--no-trace-requests", "--enable-engine-control", "--tensor-parallel-size", num_ranks)
    switches += ("--override-generation-config", '{"temperature": 0.3}')
    with serving(model, *ENGINE, *switches, "--name", "petite", cache=cache) as service:
        service.wait_for_line("ready: petite")
        sizes = "max_num_seqs 64, max_num_batched_tokens 512, max_model_len 512, 256 KV blocks"
        kernels = rayinfer_kernels.runnable_kernel_paths()[0]
        line = f"engine of petite: {sizes} of 16 tokens (4,096 in all), no async scheduling, no CUDA graphs, {kernels}"
        shown = service.wait_for_line("engine of petite: ")
        assert shown.startswith(f"{line} kernels, ")
        assert shown.endswith("; given num_kv_blocks, the rest defaults of a CPU")
        defaults = "default sampling parameters of petite: temperature 0.3"
        assert service.wait_for_line("default sampling parameters") == defaults
        curl = shlex.split(service.wait_for_line("curl "))
        answer = json.loads(subprocess.run([*curl, "-s"], capture_output=True, check=True).stdout)
        assert answer["model"] == "petite"
        assert answer["choices"][0]["message"]["role"] == "assistant"

        trace = httpx.get(f"{service.url}/v1/requests/{answer['id']}/trace")
        assert (trace.status_code, trace.json()["error"]["code"]) == (404, "traces_switched_off")
        assert httpx.post(f"{service.url}/pause").status_code == 200
        assert httpx.post(f"{service.url}/resume").status_code == 200

        record = json.loads((cache / "services" / f"{service.port}.json").read_text())
        assert (record["port"], record["models"]) == (service.port, ["petite"])
        processes = service.processes()
        listing = run_cli("ps", "--json", "--port", service.port, cache=cache)
        listed = json.loads(listing.stdout or listing.stderr)
        assert {"controller", "router", "engine_replica", "engine"} == {entry["role"] for entry in listed}
        assert {entry["pid"] for entry in listed} <= {process.pid for process in processes}
        ranks = [(entry["rank"], entry["load"]) for entry in listed if entry["role"] == "engine"]
        assert ranks == [(0, 0), (1, None)][:num_ranks]

        assert "engine_replica" in run_cli("ps", cache=cache).stdout

        # What Ray says to its users is for the log file; a terminal sees the phases, the address and the command.
        assert [line for line in service.lines if "ray." in line.lower() or "info" in line.lower()] == []
        steps = [line.partition(" (")[0] for line in service.lines if line.startswith("    ")]
        assert steps[0] == ("    engine 1: importing torch" if num_ranks > 1 else "    importing torch")
        assert list((cache / "services").glob("start-*")) == []

        started = time.monotonic()
        assert service.stop(number) == 0
        assert_all_gone(processes, started)
        assert not is_listening(service.url)
        assert list((cache / "services").glob("*.json")) == []


@pytest.mark.usefixtures("compiled")
def test_two_models_answer_by_their_names_behind_one_port(model, cache):
    with serving(model, f"{model}=other", *ENGINE, cache=cache) as service:
        service.wait_for_line(f"ready: {model.name}, other")
        listed = httpx.get(f"{service.url}/v1/models").json()["data"]
        assert [card["id"] for card in listed] == [model.name, "other"]
        for name in (model.name, "other"):
            body = {"model": name, "prompt": "Once", "max_tokens": 2}
            assert httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).json()["model"] == name
        unnamed = httpx.post(f"{service.url}/v1/completions", json={"prompt": "Once"})
        assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "b", "--name", "c"), "--name names one model, got 2"),
        (("a=c", "b=c"), "two models have the name 'c'"),
        (("a=",), "'a=' has no name"),
    ],
)
def test_names_of_models_that_cannot_be_are_one_line(arguments, message, cache):
    result = run_cli("serve", *arguments, cache=cache)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert message in result.stderr


@pytest.mark.faults  # half a minute
def test_an_end_that_takes_long_is_an_end_all_the_same(model, cache):
    with serving(model, *ENGINE, "--name", "petite", "--request-timeout", 0.1, cache=cache) as service:
        service.wait_for_line("ready: ")
        assert any(line.startswith("    compiling kernels (") for line in service.lines)
        long = {"model": "petite", "prompt": "a", "max_tokens": 1500, "ignore_eos": True}
        assert httpx.post(f"{service.url}/v1/completions", json=long, timeout=60).status_code == 504
        processes = service.processes()
        (table,) = (process for process in processes if "gcs_server" in process.title.partition(" ")[0])
        os.kill(table.pid, signal.SIGSTOP)  # Ray's own shutdown waits for it
        started = time.monotonic()
        assert service.stop(signal.SIGTERM) == 0
        assert time.monotonic() - started > 3, "it was to take longer than Ray gives a process after SIGTERM"
        assert_all_gone(processes, started)


def test_ctrl_c_while_it_starts_leaves_nothing_behind_either(model, cache):
    with serving(model, *ENGINE, cache=cache) as service:
        service.wait_for_line("starting Ray (")
        processes = service.processes()
        assert any("raylet" in process.title for process in processes)
        started = time.monotonic()
        assert service.stop(signal.SIGINT) == 130
        assert_all_gone(processes, started)


@pytest.mark.parametrize(
    ("number", "program"), [(signal.SIGTERM, "gcs_server"), (signal.SIGINT, "raylet"), (signal.SIGHUP, "raylet")]
)
def test_a_signal_while_ray_itself_comes_up_ends_everything_at_once(model, cache, number, program):
    with serving(model, *ENGINE, cache=cache) as service:
        service.wait_for_process(program)
        started = time.monotonic()
        assert service.stop(number) == 130
        assert time.monotonic() - started < 20
        assert [process.title for process in processes_with(f"RAYINFER_CACHE={cache}")] == []
        assert not [line for line in service.lines if "starting Ray (" in line]


def test_a_port_in_use_is_one_clear_line_at_once(model, cache):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # like Serve's proxy, which would share the port
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = run_cli("serve", model, "--port", port, cache=cache)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model.safetensors", lambda content: content[:1000], "model.safetensors"),
        pytest.param("model.safetensors", lambda content: b"\xff" * 64, "model.safetensors", marks=pytest.mark.faults),
        pytest.param("config.json", lambda content: content[:20], "config.json", marks=pytest.mark.faults),
        pytest.param(
            "config.json",
            lambda content: content.replace(b"LlamaForCausalLM", b"OtherForCausalLM"),
            "OtherForCausalLM",
            marks=pytest.mark.faults,
        ),
        pytest.param(
            "config.json",
            lambda content: content.replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": 3'),
            "layers.2.",
            marks=pytest.mark.faults,
        ),
        ("config.json", lambda content: content.replace(b'"hidden_size": 64', b'"hidden_size": 128'), "shape"),
        pytest.param("tokenizer.json", lambda content: content[:200], "tokenizer.json", marks=pytest.mark.faults),
        (
            "generation_config.json",
            lambda content: content.replace(b"{", b'{"top_p": 7,', 1),
            "generation_config.json: top_p must lie in (0, 1], got 7",
        ),
        (
            "tokenizer_config.json",
            lambda content: content.replace(b'"chat_template": "', b'"chat_template": "{% if'),
            "chat template",
        ),
    ],
)
def test_a_broken_checkpoint_is_one_line_within_seconds(model, cache, tmp_path, file, change, message):
    started = time.monotonic()
    answer = run_cli("serve", copy_with(model, tmp_path, file, change), "--port", 1, cache=cache)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert answer.stdout == ""
    assert time.monotonic() - started < 60


@pytest.mark.usefixtures("compiled")
def test_a_setting_that_an_engine_refuses_leaves_no_folder_behind(model, cache, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:  # short: it holds sockets
        monkeypatch.setenv("RAY_TMPDIR", parent)
        answer = run_cli("serve", model, "--kv-cache-memory-bytes", 10**14, "--port", free_port(), cache=cache)
        assert list(Path(parent).iterdir()) == []
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: kv_cache_memory_bytes")
    assert "Ray's logs" not in line


def test_a_model_that_does_not_exist_is_one_line(cache):
    answer = run_cli("serve", "./no-such-model", cache=cache)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[0].startswith("error: ")
    assert "no-such-model" in answer.stderr
