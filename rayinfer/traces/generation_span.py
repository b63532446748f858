"""Spans of generations, as OpenTelemetry's backends get them; never with prompts or texts."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

from rayinfer.errors import ConfigError

EXTRA = "rayinfer[otel]"
TRACES_PATH = "/v1/traces"
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

Attribute = str | int | float | Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSpan:
    """A generation that has ended."""

    name: str
    start_s: float  # since 1970
    end_s: float
    attributes: Mapping[str, Attribute]
    error_type: str | None  # None: it ended well
    headers: Mapping[str, str]  # of its request: the span continues their `traceparent`


class SpanRecorder(Protocol):
    """Receiver of spans."""

    def record(self, span: GenerationSpan) -> None:
        """Take a span; never waits."""
        ...

    def close(self) -> None:
        """Export what is left; may take seconds."""
        ...


def checked_endpoint(endpoint: str) -> str:
    """Return the URL that spans are sent to, with OTLP's path where it has none; raises ConfigError."""
    try:
        parts = urlsplit(endpoint)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"otlp_traces_endpoint must be a URL as http://127.0.0.1:4318/v1/traces, got {endpoint!r:.200}"
        )
    return endpoint if parts.path.strip("/") else parts._replace(path=TRACES_PATH).geturl()


def check_extra_is_installed() -> None:
    """Raise ConfigError where the packages that export spans are missing."""
    try:
        is_installed = all(find_spec(package) is not None for package in _PACKAGES)
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise ConfigError(f"otlp_traces_endpoint needs OpenTelemetry's SDK: install {EXTRA}")


def otlp_recorder(endpoint: str, router: str) -> SpanRecorder:
    """Return a recorder of a router's spans; raises ConfigError without the extra."""
    check_extra_is_installed()
    otlp = importlib.import_module("rayinfer.traces.otlp_spans")
    recorder: SpanRecorder = otlp.OtlpSpanRecorder(otlp.batches_to(checked_endpoint(endpoint)), router)
    return recorder
