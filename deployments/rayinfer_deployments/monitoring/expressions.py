"""PromQL expressions over defined metrics; a label that a metric lacks is an error.

Every target of a service returns the metrics of all its routers, so a service with several pods is scraped several
times over. `max without (instance, pod)` counts each series once before anything is summed.
"""

from collections.abc import Sequence
from typing import Literal

from rayinfer.metrics.definition import MetricDefinition

Part = Literal["bucket", "sum", "count"]
TARGET_LABELS = ("job", "instance")  # which Prometheus adds
ONCE = "max without (instance, pod)"


class Scope:
    """Matchers that every expression gets: those of a dashboard's variables, or none in rules."""

    def __init__(self, job: str = "", model: str = "") -> None:
        self._job = job
        self._model = model

    def series(self, metric: MetricDefinition, part: Part | None = None, **matchers: str) -> str:
        """Select a metric's series; a matcher's value begins with `~` if it is a regular expression."""
        known = {*metric.all_labels, *TARGET_LABELS, *(["le"] if part == "bucket" else [])}
        if unknown := sorted(matchers.keys() - known):
            raise ValueError(f"{metric.name}: no label {unknown[0]!r}; it has {', '.join(sorted(known))}")
        if (metric.kind == "histogram") != (part is not None):
            raise ValueError(f"{metric.name}: a {metric.kind}, so part={part!r} is impossible")
        wanted = dict(matchers)
        if self._model and "model_name" in metric.all_labels:
            wanted.setdefault("model_name", f"~{self._model}")
        if self._job:
            wanted.setdefault("job", f"~{self._job}")
        name = f"{metric.name}_{part}" if part else metric.sample_names[0]
        inner = ", ".join(_matcher(label, value) for label, value in wanted.items())
        return f"{name}{{{inner}}}" if inner else name

    def total(self, metric: MetricDefinition, by: Sequence[str] = (), **matchers: str) -> str:
        """Sum a gauge."""
        _check(metric, by)
        return f"{_sum(by)} ({ONCE} ({self.series(metric, None, **matchers)}))"

    def largest(self, metric: MetricDefinition, by: Sequence[str] = (), **matchers: str) -> str:
        """Take the greatest of a gauge's values."""
        _check(metric, by)
        return f"max{_by(by)} ({self.series(metric, None, **matchers)})"

    def rate(
        self,
        metric: MetricDefinition,
        by: Sequence[str] = (),
        *,
        window: str = "$__rate_interval",
        part: Part | None = None,
        **matchers: str,
    ) -> str:
        """Sum the growth a second of a counter, or of a histogram's part."""
        return self._grown("rate", metric, by, window, part, matchers)

    def increase(
        self,
        metric: MetricDefinition,
        by: Sequence[str] = (),
        *,
        window: str,
        part: Part | None = None,
        **matchers: str,
    ) -> str:
        """Sum the growth of a counter, or of a histogram's part, in a window."""
        return self._grown("increase", metric, by, window, part, matchers)

    def quantile(
        self, quantile: float, metric: MetricDefinition, by: Sequence[str] = (), *, window: str = "$__rate_interval"
    ) -> str:
        """Estimate a quantile from a histogram."""
        rates = self.rate(metric, [*by, "le"], window=window, part="bucket")
        return f"histogram_quantile({quantile:g}, {rates})"

    def mean(self, metric: MetricDefinition, by: Sequence[str] = (), *, window: str = "$__rate_interval") -> str:
        """Return a histogram's mean."""
        total = self.rate(metric, by, window=window, part="sum")
        return f"{total} / {self.rate(metric, by, window=window, part='count')}"

    def _grown(
        self,
        function: str,
        metric: MetricDefinition,
        by: Sequence[str],
        window: str,
        part: Part | None,
        matchers: dict[str, str],
    ) -> str:
        if metric.kind == "gauge":
            raise ValueError(f"{metric.name}: a gauge has no {function}")
        _check(metric, [label for label in by if label != "le" or part != "bucket"])
        return f"{_sum(by)} ({ONCE} ({function}({self.series(metric, part, **matchers)}[{window}])))"


def _check(metric: MetricDefinition, by: Sequence[str]) -> None:
    if unknown := sorted(set(by) - metric.all_labels - set(TARGET_LABELS)):
        raise ValueError(f"{metric.name}: no label {unknown[0]!r} to sum by")


def _sum(by: Sequence[str]) -> str:
    return f"sum{_by(by)}"


def _by(by: Sequence[str]) -> str:
    return f" by ({', '.join(by)})" if by else ""


def _matcher(label: str, value: str) -> str:
    operator, text = ("=~", value[1:]) if value.startswith("~") else ("=", value)
    return f'{label}{operator}"{text}"'
