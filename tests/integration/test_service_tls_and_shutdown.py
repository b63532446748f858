"""`rayinfer serve` with mutual TLS over HTTP and gRPC, and its end with streams open, which comes last."""

import contextlib
import json
import signal
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest

from rayinfer.access.api_key import Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.access.usage_log import UsageLog, usage_log_path
from rayinfer.config import cache_folder
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.server import SERVICE
from support.faults.cli_processes import serving
from support.services.certificates import grpc_credentials, make_certificate, trusting
from support.services.free_ports import free_port
from support.services.polling import wait_until
from support.tiny_models.tiny_checkpoints import make_tiny_llama

LONG = {"max_tokens": 30_000, "temperature": 0, "ignore_eos": True}
PROMPT = "Once upon a time"
MESSAGE = "The service is shutting down."


class SecureService:
    """A service that asks for certificates and keys, and its files."""

    def __init__(self, command, folder, server, client, keys, secret, grpc_port):
        self.command, self.folder, self.server, self.client = command, folder, server, client
        self.keys, self.headers, self.grpc_port = keys, {"authorization": f"Bearer {secret}"}, grpc_port
        self.url = command.url.replace("http:", "https:")

    def http(self):
        context = trusting(self.server, self.client)
        return httpx.Client(base_url=self.url, headers=self.headers, verify=context, timeout=60, trust_env=False)

    @contextlib.contextmanager
    def channel(self, own):
        """Connect anew over gRPC, with this certificate or none."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        credentials = grpc_credentials(self.server, own)
        with grpc.secure_channel(f"127.0.0.1:{self.grpc_port}", credentials, options) as channel:
            yield channel

    def infer(self, channel, **parameters):
        return channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer", pb.ModelInferRequest.SerializeToString)(
            text_message(**parameters), metadata=list(self.headers.items()), timeout=60
        )

    def logged(self):
        return [json.loads(line) for line in (self.folder / "access.jsonl").read_text().splitlines()]


def text_message(**parameters):
    message = pb.ModelInferRequest(model_name="tiny")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(PROMPT.encode())
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        message.parameters[name].MergeFrom(pb.InferParameter(**{kind: value}))
    return message


def make_files(folder, name):
    folder.mkdir()
    return make_certificate(folder, name)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    model = make_tiny_llama(folder / "tiny", max_position_embeddings=65536)
    server, client = make_files(folder / "server", "service"), make_files(folder / "client", "client")
    keys, grpc_port = KeyFile(folder / "api-keys.jsonl"), free_port()
    secret = keys.create("alice", scopes=list(Scope))
    files = ("--tls-cert", server.certificate, "--tls-key", server.key, "--tls-client-ca", client.certificate)
    options = ("--api-keys", keys.path, "--access-log", folder / "access.jsonl", "--grpc-port", grpc_port)
    switches = ("--shutdown-grace", 3, "--enable-engine-control", "--num-kv-blocks", 16384, "--num-threads", 1)
    (folder / "cache").mkdir()
    (folder / "cache" / "kernels").symlink_to(cache_folder() / "kernels")  # compiled once for all tests
    with serving(model, *files, *options, *switches, cache=folder / "cache") as command:
        command.wait_for_line("ready: tiny")
        yield SecureService(command, folder, server, client, keys, secret, grpc_port)


def test_clients_with_certificates_are_answered_over_both_ports(secure):
    with secure.http() as http, secure.channel(secure.client) as channel:
        body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
        text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        lines = http.post("/v1/completions", json=body | {"stream": True}).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(event["choices"][0]["text"] for event in events) == text
        answer = pb.ModelInferResponse.FromString(secure.infer(channel, max_tokens=4, temperature=0, ignore_eos=True))
        assert answer.outputs[0].contents.bytes_contents[0].decode() == text


def test_clients_without_a_certificate_of_theirs_are_refused_on_both_ports(secure, tmp_path):
    stranger = make_files(tmp_path / "stranger", "stranger")
    for own in (None, stranger):
        with (
            httpx.Client(verify=trusting(secure.server, own), trust_env=False) as http,
            pytest.raises(httpx.TransportError),
        ):
            http.get(f"{secure.url}/health")
        with secure.channel(own) as channel, pytest.raises(grpc.RpcError) as refused:
            secure.infer(channel, max_tokens=1)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{secure.command.url}/health", trust_env=False)


def test_a_changed_certificate_is_served_without_a_restart(secure):
    with secure.http() as open_before:
        assert open_before.get("/health").status_code == 200
        before = Path(secure.server.certificate).read_text()
        make_certificate(Path(secure.server.certificate).parent, "service")
        assert Path(secure.server.certificate).read_text() != before
        wait_until(lambda: reaches(secure), 10.0)
        with secure.channel(secure.client) as channel:
            assert secure.infer(channel, max_tokens=1)
        assert open_before.get("/health").status_code == 200


def reaches(secure):
    """Say whether a new connection gets the certificate that the file has now."""
    with secure.http() as http, contextlib.suppress(httpx.ConnectError, ssl.SSLError):
        return http.get("/health").status_code == 200
    return False


def test_a_signal_lets_streams_end_and_ends_the_others_with_errors_of_their_protocols(secure):
    paths = {
        "/v1/completions": {"prompt": PROMPT, "stream": True, **LONG},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "stream": True, **LONG},
        "/generate_stream": {"inputs": PROMPT, "parameters": {"max_new_tokens": 30_000}},
        "/v2/models/tiny/generate_stream": {"text_input": PROMPT, **LONG},
    }
    short = {"prompt": PROMPT, "stream": True, **LONG, "max_tokens": 50}
    with contextlib.ExitStack() as stack:
        http, threads = stack.enter_context(secure.http()), stack.enter_context(ThreadPoolExecutor(4))
        channel = stack.enter_context(secure.channel(secure.client))
        streams = {}
        for path, body in paths.items():
            response = stack.enter_context(http.stream("POST", path, json=body))
            streams[path] = response.iter_lines()
            assert next(streams[path])
        whole = threads.submit(http.post, "/v1/completions", json={"prompt": PROMPT, **LONG})
        unary = threads.submit(secure.infer, channel, max_tokens=30_000, ignore_eos=True)
        call = channel.stream_stream(f"/{SERVICE.full_name}/ModelStreamInfer", pb.ModelInferRequest.SerializeToString)
        has_ended = threading.Event()
        messages = call(requests_until(has_ended), metadata=list(secure.headers.items()), timeout=60)
        assert not pb.ModelStreamInferResponse.FromString(next(messages)).error_message
        wait_until(lambda: num_running(http) == 7)
        with http.stream("POST", "/v1/completions", json=short) as finishing:
            lines = finishing.iter_lines()
            assert next(lines)
            assert http.post("/pause").status_code == 200
            ending = threads.submit(secure.command.stop, signal.SIGTERM)
            said = secure.command.wait_for_line("waiting for ")
            assert said == "waiting for 8 open requests, up to 3 s; press Ctrl+C again to stop at once"
            refused = http.post("/v1/completions", json=short)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert int(refused.headers["retry-after"]) >= 1
            with pytest.raises(grpc.RpcError) as refusal:
                secure.infer(channel, max_tokens=1)
            assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
            assert http.get("/ready").status_code == 503
            assert http.get("/health").status_code == 200
            assert http.post("/resume").status_code == 200
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        ends = {path: [line for line in lines if line][-2:] for path, lines in streams.items()}
        for path in ("/v1/completions", "/v1/chat/completions"):
            assert json.loads(ends[path][0].removeprefix("data: "))["error"]["code"] == "shutting_down"
            assert ends[path][1] == "data: [DONE]"
        error = {"error": MESSAGE, "error_type": "overloaded"}
        assert json.loads(ends["/generate_stream"][1].removeprefix("data:")) == error
        assert json.loads(ends["/v2/models/tiny/generate_stream"][1].removeprefix("data: ")) == {"error": MESSAGE}
        assert (whole.result().status_code, whole.result().json()["error"]["message"]) == (503, MESSAGE)
        assert (unary.exception().code(), unary.exception().details()) == (grpc.StatusCode.UNAVAILABLE, MESSAGE)
        assert stream_end(messages) == (MESSAGE, grpc.StatusCode.UNAVAILABLE)
        has_ended.set()
        assert ending.result() == 0
    logged = [line for line in secure.logged() if line.get("output_tokens") and line["path"] in paths]
    assert {line["path"] for line in logged} == set(paths)
    with contextlib.closing(UsageLog(usage_log_path(secure.keys.path))) as usage:
        counted = sum(row.usage.output_tokens for row in usage.rows())
    assert counted >= sum(line["output_tokens"] for line in logged) > 0


def num_running(http):
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running{"))


def requests_until(has_ended):
    """Yield a request of a stream that stays open for more, as tritonclient's do."""
    yield text_message(max_tokens=30_000, ignore_eos=True)
    has_ended.wait(60)


def stream_end(messages):
    """Return the error message that a gRPC stream ended with, and its status."""
    last = pb.ModelStreamInferResponse()
    try:
        for message in messages:
            last = pb.ModelStreamInferResponse.FromString(message)
    except grpc.RpcError as error:
        return last.error_message, error.code()
    return last.error_message, None
