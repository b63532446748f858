import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from rayinfer_deployments.cli import build_application
from support.tiny_models.tiny_checkpoints import make_tiny_llama


class Completions(BaseHTTPRequestHandler):
    """Server that answers every request with one chunk and the usage that was asked for."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        usage = {"completion_tokens": body["max_tokens"]}
        chunk = json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"data: " + chunk + b"\n\ndata: [DONE]\n\n")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as server:
        server.bodies = []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def bench(server, *arguments):
    url = f"http://127.0.0.1:{server.server_port}"
    command = ["bench", "serve", "--base-url", url, "--model", "m", "--num-requests", "8", *arguments]
    return CliRunner().invoke(build_application(), command)


@pytest.mark.parametrize(
    ("lengths", "inputs", "outputs", "reported"),
    [
        (("--input-len", "3:4", "--output-len", "5:6"), {3, 4}, {5, 6}, ([3, 4], [5, 6])),
        (("--input-len", "3", "--output-len", "5"), {3}, {5}, (3, 5)),
    ],
)
def test_lengths_are_ranges_or_numbers(server, tmp_path, lengths, inputs, outputs, reported):
    result = bench(server, *lengths, "--json", str(tmp_path / "report.json"))
    assert result.exit_code == 0, result.output
    assert {len(body["prompt"]) for body in server.bodies} == inputs
    assert {body["max_tokens"] for body in server.bodies} == outputs
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["input_len"], report["output_len"]) == reported


@pytest.mark.parametrize("length", ["0", "4:3", "x"])
def test_impossible_lengths_are_one_line(server, length):
    result = bench(server, "--input-len", length)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: a length")
    assert result.stderr.count("\n") == 1
    assert server.bodies == []


def test_the_scheduler_is_measured_without_a_model(tmp_path):
    sizes = ["--running", "2", "--running", "4", "--queued", "3", "--num-steps", "2", "--num-requests", "10"]
    command = ["bench", "scheduler", *sizes, "--json", str(tmp_path / "report.json")]
    result = CliRunner().invoke(build_application(), command)
    assert result.exit_code == 0, result.output
    assert "microseconds per step" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(times["num_running"], times["num_queued"]) for times in report["steps"]] == [
        (2, 0),
        (2, 3),
        (4, 0),
        (4, 3),
    ]
    assert report["churn"]["num_requests"] == 10


def test_routing_decisions_are_measured_without_a_service(tmp_path):
    (tmp_path / "model").mkdir()
    model = ["--model", str(make_tiny_llama(tmp_path / "model"))]
    sizes = ["--profile", "none", "--waiting", "0,3", "--engines", "2", "--decisions", "5"]
    result = CliRunner().invoke(build_application(), ["bench", "router", *model, *sizes, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "router.json").read_text())
    assert [(cost["num_waiting"], cost["num_engines"]) for cost in report["decisions"]] == [(0, 2), (3, 2)]
    assert report["services"] == []
    assert "routing decision" in (tmp_path / "router.md").read_text()


@pytest.mark.parametrize(
    "option",
    [("--profile", "fast"), ("--waiting", "-1"), ("--engines", "0"), ("--waiting", "many"), ("--variants", "sse,http")],
)
def test_impossible_router_settings_are_one_line(tmp_path, option):
    result = CliRunner().invoke(build_application(), ["bench", "router", *option, "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
