"""Definition of one metric: name, kind, description and labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

MetricKind = Literal["gauge", "counter", "histogram"]
ROUTER_LABEL = "router"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric of a service; dashboards and alerts refer to it, so that they cannot misspell it."""

    name: str  # of a counter without the suffix `_total`
    kind: MetricKind
    description: str
    labels: tuple[str, ...]  # its own; a service with routers adds `router` to what each counts for itself
    is_per_router: bool

    @property
    def all_labels(self) -> frozenset[str]:
        """All labels that a sample may have, but a histogram's `le`."""
        return frozenset(self.labels) | ({ROUTER_LABEL} if self.is_per_router else set())

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Names of its samples, as in Prometheus."""
        if self.kind == "counter":
            return (f"{self.name}_total",)
        if self.kind == "histogram":
            return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
        return (self.name,)

    def family_labels(self, *, has_routers: bool, extra: Sequence[str] = ()) -> list[str]:
        """Return the labels of its samples in a service with or without routers, in their order."""
        return [*self.labels, *extra, *([ROUTER_LABEL] if has_routers and self.is_per_router else [])]

    def gauge(self, *, has_routers: bool, extra: Sequence[str] = ()) -> GaugeMetricFamily:
        """Return an empty family of a gauge."""
        assert self.kind == "gauge", self.name
        labels = self.family_labels(has_routers=has_routers, extra=extra)
        return GaugeMetricFamily(self.name, self.description, labels=labels)

    def counter(self, *, has_routers: bool) -> CounterMetricFamily:
        """Return an empty family of a counter."""
        assert self.kind == "counter", self.name
        return CounterMetricFamily(self.name, self.description, labels=self.family_labels(has_routers=has_routers))

    def histogram(self, *, has_routers: bool) -> HistogramMetricFamily:
        """Return an empty family of a histogram."""
        assert self.kind == "histogram", self.name
        return HistogramMetricFamily(self.name, self.description, labels=self.family_labels(has_routers=has_routers))


def of_engine(kind: MetricKind, name: str, description: str, *labels: str) -> MetricDefinition:
    """Define what an engine reports; each sample is there once, whichever routers know it."""
    return MetricDefinition(name, kind, description, ("model_name", "engine", *labels), is_per_router=False)


def of_model(kind: MetricKind, name: str, description: str, *labels: str) -> MetricDefinition:
    """Define what each router counts for a model."""
    return MetricDefinition(name, kind, description, ("model_name", *labels), is_per_router=True)


def of_router(kind: MetricKind, name: str, description: str, *labels: str) -> MetricDefinition:
    """Define what each router counts for the service."""
    return MetricDefinition(name, kind, description, labels, is_per_router=True)
