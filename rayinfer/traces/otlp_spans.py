"""Spans of generations made with OpenTelemetry's SDK, the extra `otel`, and exported by OTLP over HTTP."""

import logging
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rayinfer import __version__
from rayinfer.traces.generation_span import GenerationSpan

SERVICE = "rayinfer"
EXPORT_MS = 1000  # between two batches: what a router that is killed loses
# They log every try to reach an endpoint that is away, and every span that finds the queue full.
_NOISY_LOGGERS = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal")

logger = logging.getLogger(__name__)


class OtlpSpanRecorder:
    """Recorder that makes a span of each generation, as a child of the caller's."""

    def __init__(self, processor: SpanProcessor, router: str) -> None:
        resource = Resource.create(
            {"service.name": SERVICE, "service.version": __version__, "service.instance.id": router}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SERVICE, __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, span: GenerationSpan) -> None:
        """Make a span with the generation's own times, and queue it; never waits."""
        made = self._tracer.start_span(
            span.name,
            context=self._propagator.extract(span.headers, context=Context()),
            kind=SpanKind.SERVER,
            attributes=span.attributes,
            start_time=int(span.start_s * 1e9),
        )
        if span.error_type is not None:
            made.set_attribute("error.type", span.error_type)
            made.set_status(Status(StatusCode.ERROR))
        made.end(int(span.end_s * 1e9))

    def close(self) -> None:
        """Export what is left; what an endpoint that is away would have got is lost at once."""
        self._provider.shutdown()


def batches_to(endpoint: str) -> SpanProcessor:
    """Return a processor that sends batches to an endpoint, in a thread of its own."""
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return _Batches(_OnceLoggedExporter(OTLPSpanExporter(endpoint), endpoint))


class _OnceLoggedExporter(SpanExporter):
    """Exporter that logs the first of the failures in a row."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint.rpartition("@")[2]  # without a password
        self._is_away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; one that fails is lost."""
        result = self._exporter.export(spans)
        is_away = result is not SpanExportResult.SUCCESS
        if is_away and not self._is_away:
            logger.warning("spans are lost: %s does not take them", self._endpoint)
        self._is_away = is_away
        return result

    def give_up(self) -> None:
        """Try no longer to reach an endpoint that is away."""
        if self._is_away:
            self._exporter.shutdown()

    def shutdown(self) -> None:
        """End the exporter."""
        self._exporter.shutdown()


class _Batches(BatchSpanProcessor):
    """Batches of spans; the end of the service does not wait for an endpoint that is away."""

    def __init__(self, exporter: _OnceLoggedExporter) -> None:
        super().__init__(exporter, schedule_delay_millis=EXPORT_MS)
        self._own_exporter = exporter

    def shutdown(self) -> None:
        """Export what is left."""
        self._own_exporter.give_up()
        super().shutdown()  # type: ignore[no-untyped-call]
