import logging
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rayinfer.errors import ConfigError
from rayinfer.traces.generation_span import GenerationSpan, checked_endpoint, otlp_recorder
from support.services.polling import wait_until

AWAY = "http://user:secret@127.0.0.1:1/v1/traces"  # a port that nothing listens on


def span(number):
    return GenerationSpan(
        name=f"text_completion {number}", start_s=1e9, end_s=1e9 + 1, attributes={"a": 1}, error_type=None, headers={}
    )


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.received = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_spans_reach_the_endpoint_in_batches_at_the_latest_with_the_end(collector):
    recorder = otlp_recorder(f"http://127.0.0.1:{collector.server_port}", "router-1")
    for number in range(20):
        recorder.record(span(number))
    recorder.close()
    assert {path for path, _ in collector.received} == {"/v1/traces"}
    (batch,) = (request for _, request in collector.received)
    found = [each for of in batch.resource_spans[0].scope_spans for each in of.spans]
    assert [each.name for each in found] == [f"text_completion {number}" for number in range(20)]
    assert {each.end_time_unix_nano - each.start_time_unix_nano for each in found} == {10**9}


def test_an_endpoint_that_is_away_loses_spans_with_one_line_and_holds_up_nothing(caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2")  # read by the SDK
    with caplog.at_level(logging.INFO):
        recorder = otlp_recorder(AWAY, "router-1")
        started_s = time.thread_time()
        for number in range(5_000):  # more than the queue holds
            recorder.record(span(number))
        assert time.thread_time() - started_s < 5
        wait_until(lambda: caplog.records)  # the exporter's own tries come first
        started_s = time.monotonic()
        recorder.close()
        assert time.monotonic() - started_s < 5  # other batches wait, of a second each
    (line,) = caplog.records
    assert line.getMessage() == "spans are lost: 127.0.0.1:1/v1/traces does not take them"
    assert line.name.startswith("rayinfer.")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://[::1]:4318/otlp", "http://[::1]:4318/otlp"),
    ],
)
def test_an_endpoint_without_a_path_has_the_protocols_one(given, expected):
    assert checked_endpoint(given) == expected


@pytest.mark.parametrize("given", ["", "collector:4318", "grpc://collector:4317", "http://", "http://a:x", "http://[1"])
def test_what_is_no_url_is_refused(given):
    with pytest.raises(ConfigError, match="otlp_traces_endpoint must be a URL"):
        checked_endpoint(given)


@pytest.mark.parametrize("package", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_without_the_extra_the_error_names_it(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"install rayinfer\[otel\]"):
        otlp_recorder("http://127.0.0.1:4318", "router-1")
