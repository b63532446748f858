import grpc
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

from rayinfer.errors import QueueFull
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.traces.otlp_spans import OtlpSpanRecorder
from tests.unit.servers.kserve.grpc.test_infer_calls import text

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
METADATA = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=one"))


@pytest.fixture
def exported():
    return InMemorySpanExporter()


@pytest.fixture
def kserve(models, exported):
    recorder = OtlpSpanRecorder(SimpleSpanProcessor(exported), "router-1")
    return InferenceService(GenerationService(models, None, None, spans=recorder), ModelRepository(models))


async def test_a_calls_generations_continue_the_trace_in_its_metadata(stub, exported):
    await stub.ModelInfer(text(), metadata=METADATA)
    calls = stub.ModelStreamInfer(iter([text(), text()]), metadata=METADATA)
    async for _ in calls:
        pass
    spans = exported.get_finished_spans()
    assert [format_trace_id(span.context.trace_id) for span in spans] == [TRACE] * 3
    assert {format_span_id(span.parent.span_id) for span in spans} == {PARENT}
    assert {span.context.trace_state.to_header() for span in spans} == {"vendor=one"}
    assert {span.attributes["gen_ai.usage.output_tokens"] for span in spans} == {3}
    assert {span.attributes["server.address"] for span in spans} == {"127.0.0.1"}


async def test_a_refused_call_is_a_span_with_its_kind(stub, exported, generator):
    generator.refusal = QueueFull("full")
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.ModelInfer(text())
    (span,) = exported.get_finished_spans()
    assert (span.attributes["error.type"], span.parent) == ("queue_full", None)
