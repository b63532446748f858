"""`GET /live`: one sample a second of the models and engines that the caller may see, as server-sent events.

All streams share the samples: they are collected once a second while any stream is open, and encoded once for each
set of models. A stream ends after `STREAM_S`, so that none delays a drain for long; clients connect again.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.responses import StreamingResponse

from rayinfer.metrics.families import MetricsSnapshot
from rayinfer.metrics.histogram import Histogram
from rayinfer.metrics.request_timer import ModelCounts
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from rayinfer.servers.caller import usable_models
from rayinfer.servers.generation.server_sent_events import EVENT_HEADERS, EVENT_STREAM, event
from rayinfer.servers.openapi import READ_ERRORS, responses
from rayinfer.servers.served_model import ServedModel

PATH = "/live"
INTERVAL_S = 1.0
STREAM_S = 15.0

OtherMetrics = Callable[[], Awaitable[Sequence[MetricsSnapshot]]]

_SAMPLE = {
    "type": "object",
    "required": ["time_s", "models"],
    "properties": {"time_s": {"type": "number"}, "models": {"type": "object"}},
}


class LiveSamples:
    """The latest sample, collected again when it is older than the interval."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        metrics: ServiceMetrics,
        other_metrics: OtherMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._other_metrics = other_metrics
        self._clock = clock
        self._lock = asyncio.Lock()
        self._collected_s = float("-inf")
        self._sample: dict[str, Any] = {}
        self._encoded: dict[frozenset[str], bytes] = {}

    async def latest(self, names: frozenset[str]) -> bytes:
        """Return the latest sample of these models as an event."""
        async with self._lock:
            if self._clock() - self._collected_s >= INTERVAL_S / 2:
                await self._collect()
        if (encoded := self._encoded.get(names)) is None:
            models = {name: model for name, model in self._sample["models"].items() if name in names}
            encoded = event(json.dumps({**self._sample, "models": models}, separators=(",", ":")).encode())
            self._encoded[names] = encoded
        return encoded

    async def _collect(self) -> None:
        others = [] if self._other_metrics is None else await self._other_metrics()
        snapshots = [self._metrics.snapshot(), *others]
        models = {name: _model_sample(name, model, snapshots) for name, model in list(self._models.items())}
        self._sample = {"time_s": time.time(), "num_routers": len(snapshots), "models": models}
        self._encoded = {}
        self._collected_s = self._clock()


def add_live_route(app: FastAPI, models: Mapping[str, ServedModel], samples: LiveSamples) -> None:
    """Add the path to an application."""

    async def live(request: Request) -> Response:
        """Stream samples for `STREAM_S` seconds."""
        names = frozenset(usable_models(request, models))
        return StreamingResponse(_events(samples, names), headers=EVENT_HEADERS, media_type=EVENT_STREAM)

    described = responses(None, *READ_ERRORS)
    described[200]["content"] = {EVENT_STREAM.partition(";")[0]: {"schema": _SAMPLE}}
    app.add_api_route(PATH, live, methods=["GET"], response_class=Response, responses=described)


async def _events(samples: LiveSamples, names: frozenset[str]) -> AsyncIterator[bytes]:
    for _ in range(int(STREAM_S / INTERVAL_S)):
        yield await samples.latest(names)
        await asyncio.sleep(INTERVAL_S)


def _model_sample(name: str, model: ServedModel, snapshots: Sequence[MetricsSnapshot]) -> dict[str, Any]:
    status = model.generator.status()
    counts = [snapshot.models[name] for snapshot in snapshots if name in snapshot.models]
    return {
        "ready": status.ready,
        "reason": status.reason or None,
        "waiting": sum(each.num_queued for each in counts),
        "prompt_tokens": sum(each.prompt_tokens for each in counts),
        "cached_prompt_tokens": sum(each.cached_prompt_tokens for each in counts),
        "generation_tokens": sum(each.generation_tokens for each in counts),
        "migrations": sum(each.migrations for each in counts),
        "finished": _added([each.finished for each in counts]),
        "rejected": _added([each.rejected for each in counts]),
        "first_token": _histogram(counts, lambda each: each.first_token),
        "inter_token": _histogram(counts, lambda each: each.inter_token),
        "engines": {engine: _engine_sample(stats) for engine, stats in sorted(status.engines.items())},
    }


def _engine_sample(stats: EngineStats) -> dict[str, Any]:
    return {
        "state": stats.state.value,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "kv_blocks_used": stats.kv_blocks_used,
        "kv_blocks_total": stats.kv_blocks_total,
        "preemptions": stats.num_preemptions_total,
        "steps": stats.num_steps_total,
    }


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for each in counts for name in each)
    return {name: sum(each.get(name, 0) for each in counts) for name in names}


def _histogram(counts: Sequence[ModelCounts], choose: Callable[[ModelCounts], Histogram]) -> dict[str, Any]:
    """Add the histograms of all routers; counts are by bucket, the last one is beyond all bounds."""
    histograms = [choose(each) for each in counts]
    if not histograms:
        return {"bounds": [], "counts": []}
    added = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    return {"bounds": list(histograms[0].bounds), "counts": added}
