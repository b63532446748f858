import asyncio
import json
import subprocess
import sys
import time

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from rayinfer.errors import QueueFull
from rayinfer.servers.app import build_app
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.traces.otlp_spans import OtlpSpanRecorder
from rayinfer.traces.trace_store import TraceStore

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
CANARY = "zanzibar"
BODY = {"prompt": CANARY, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=one,other=two"}


@pytest.fixture
def exported():
    return InMemorySpanExporter()


@pytest.fixture
def traces():
    return TraceStore()


@pytest.fixture
def kserve(models, exported, traces):
    recorder = OtlpSpanRecorder(SimpleSpanProcessor(exported), "router-1")
    return InferenceService(GenerationService(models, None, traces, spans=recorder), ModelRepository(models))


@pytest.fixture
def app(models, metrics, kserve):
    return build_app(models, metrics, kserve=kserve)


def only(exported):
    (span,) = exported.get_finished_spans()
    assert CANARY not in span.to_json()
    assert "Hello" not in span.to_json()
    assert encode_spans([span]).resource_spans
    return span


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_has_a_span_with_its_settings_counts_and_times(client, exported, generator, stream):
    generator.num_cached_tokens = 2
    before = time.time()
    answer = await client.post(TEXT, json=BODY | {"stream": stream, "n": 2, "request_id": "mine"})
    assert answer.status_code == 200
    span = only(exported)
    assert (span.name, span.kind, span.parent) == ("text_completion org/tiny", SpanKind.SERVER, None)
    assert span.status.status_code is StatusCode.UNSET
    assert before <= span.start_time / 1e9 <= span.end_time / 1e9 <= time.time()
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "rayinfer",
        "gen_ai.request.model": "org/tiny",
        "gen_ai.response.id": "cmpl-mine",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7.0,
        "gen_ai.request.seed": 11,
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.input_tokens": len(generator.requests[0].prompt_token_ids),
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.finish_reasons": ("stop", "stop"),
        "server.address": "service",
    }
    assert expected.items() <= dict(span.attributes).items()
    e2e_s = (span.end_time - span.start_time) / 1e9
    first_s = span.attributes["gen_ai.latency.time_to_first_token"]
    assert 0 <= first_s <= span.attributes["gen_ai.latency.e2e"] == pytest.approx(e2e_s, abs=1e-5)
    decode_s = span.attributes["gen_ai.latency.time_in_model_decode"]
    assert first_s + decode_s == pytest.approx(e2e_s, abs=1e-5)
    assert "error.type" not in span.attributes
    assert span.resource.attributes["service.name"] == "rayinfer"
    assert span.resource.attributes["service.instance.id"] == "router-1"


async def test_the_time_in_the_queue_ends_with_the_dispatch_to_an_engine(client, exported, generator, traces):
    generator.blocks_after = 1
    asking = asyncio.create_task(client.post(TEXT, json=BODY | {"request_id": "mine"}))
    await generator.has_blocked.wait()
    (stored,) = traces.find("mine")
    received_s = stored.trace.in_order()[0].time_s
    traces.dispatched(generator.requests[0].request_id, [0], time_s=received_s + 0.25)
    generator.release.set()
    await asking
    attributes = only(exported).attributes
    assert attributes["gen_ai.latency.time_in_queue"] == pytest.approx(0.25, abs=1e-6)
    assert attributes["gen_ai.latency.time_in_model_prefill"] >= 0


async def test_every_protocol_has_spans_and_chats_are_named_so(client, exported):
    await client.post(CHAT, json={"messages": [{"role": "user", "content": CANARY}]})
    await client.post("/generate", json={"inputs": CANARY})
    await client.put("/api", json={"prompts": [CANARY, CANARY], "tokens_to_generate": 3})
    await client.post("/v2/models/org/tiny/generate", json={"text_input": CANARY})
    found = exported.get_finished_spans()
    names = [span.attributes["gen_ai.operation.name"] for span in found]
    assert names == ["chat", *["text_completion"] * 3]
    ids = [span.attributes["gen_ai.response.id"].partition("-")[0] for span in found]
    assert ids == ["chatcmpl", "tgi", "megatron", "infer"]
    assert found[2].attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert "gen_ai.latency.time_in_model_decode" not in found[2].attributes  # of two prompts


async def test_a_span_continues_the_callers_trace_with_its_state(client, exported):
    await client.post(TEXT, json=BODY, headers=TRACED)
    span = only(exported)
    assert format_trace_id(span.context.trace_id) == TRACE
    assert (format_span_id(span.parent.span_id), span.parent.is_remote) == (PARENT, True)
    assert span.context.trace_state.to_header() == TRACED["tracestate"]


@pytest.mark.parametrize("traceparent", ["", "00-1-2-01", f"00-{'0' * 32}-{PARENT}-01", "ff" + TRACED["traceparent"]])
async def test_a_malformed_traceparent_begins_a_new_trace(client, exported, traceparent):
    response = await client.post(TEXT, json=BODY, headers={"traceparent": traceparent})
    assert (response.status_code, only(exported).parent) == (200, None)


async def test_a_trace_that_its_caller_does_not_sample_gets_no_span(client, exported):
    await client.post(TEXT, json=BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert exported.get_finished_spans() == ()


@pytest.mark.parametrize(
    ("change", "stream", "kind", "num_tokens"),
    [
        ({"refusal": QueueFull(f"full of {CANARY}")}, False, "queue_full", 0),
        ({"refusal": RuntimeError(CANARY)}, True, "internal_error", 0),
        ({"failure": RuntimeError(CANARY)}, False, "internal_error", 1),
        ({"failure": RuntimeError(CANARY)}, True, "internal_error", 1),
        ({"finish_reason": "timeout"}, False, "timeout", 3),
        ({"finish_reason": "timeout"}, True, "timeout", 3),
        ({"finish_reason": "error"}, True, "generation_failed", 3),
    ],
)
async def test_a_failure_is_a_span_with_its_kind(client, exported, generator, change, stream, kind, num_tokens):
    for name, value in change.items():
        setattr(generator, name, value)
    await client.post(TEXT, json=BODY | {"stream": stream})
    span = only(exported)
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())
    assert span.attributes["error.type"] == kind
    assert span.attributes["gen_ai.usage.output_tokens"] == num_tokens


async def test_a_refused_body_has_no_span(client, exported):
    assert (await client.post(TEXT, json=BODY | {"temperature": -1})).status_code == 400
    assert exported.get_finished_spans() == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_span_with_what_it_got(app, exported, generator, stream):
    generator.blocks_after = 1
    body = json.dumps(BODY | {"stream": stream}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await generator.has_blocked.wait()
        return {"type": "http.disconnect"}

    async def send(_):
        pass

    scope = {"type": "http", "method": "POST", "path": TEXT, "query_string": b"", "root_path": ""}
    await app(scope | {"headers": [(b"content-type", b"application/json")]}, receive, send)
    span = only(exported)
    assert generator.aborted
    assert (span.attributes["error.type"], span.status.status_code) == ("cancelled", StatusCode.ERROR)
    assert span.attributes["gen_ai.usage.output_tokens"] == 1
    assert "gen_ai.response.finish_reasons" not in span.attributes
    assert "server.address" not in span.attributes


async def test_a_seed_beyond_the_formats_integers_is_left_out(client, exported):
    await client.post(TEXT, json=BODY | {"seed": 2**64 - 1})
    assert "gen_ai.request.seed" not in only(exported).attributes


PROGRAM = """
import sys, rayinfer.servers.app
print(sorted({"opentelemetry.sdk", "opentelemetry.exporter.otlp", "rayinfer.traces.otlp_spans"} & set(sys.modules)))
"""


def test_without_an_endpoint_the_sdk_is_not_loaded():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
