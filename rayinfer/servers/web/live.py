"""`GET /live`: one sample a second of the models and engines that the caller may see, as server-sent events.

All streams share the samples: they are collected once a second while any stream is open, and encoded once for each
set of models. A stream ends after `STREAM_S`, so that none delays a drain for long; clients connect again. How many
are open at once is limited by `live_streams.py`.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.access.api_key import Scope
from rayinfer.metrics.families import MetricsSnapshot
from rayinfer.metrics.histogram import Histogram
from rayinfer.metrics.request_timer import ModelCounts
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from rayinfer.protocols import ModelDescription
from rayinfer.servers.access.web_origins import is_here
from rayinfer.servers.caller import caller_of, usable_models
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.generation.server_sent_events import EVENT_STREAM, event
from rayinfer.servers.openapi import READ_ERRORS, responses
from rayinfer.servers.operators.operations import ScalingDecisionsOf
from rayinfer.servers.served_model import ServedModel, base_models
from rayinfer.servers.web.live_streams import LiveResponse, LiveStreams

PATH = "/live"
INTERVAL_S = 1.0
STREAM_S = 15.0
MAX_QUEUE_ROWS = 20  # tenants and priorities that are listed; the rest is added up
OTHER_TENANTS = "other tenants"

OtherMetrics = Callable[[], Awaitable[Sequence[MetricsSnapshot]]]

_SAMPLE = {
    "type": "object",
    "required": ["time_s", "models"],
    "properties": {"time_s": {"type": "number"}, "models": {"type": "object"}},
}


class Viewer(NamedTuple):
    """Rights of a caller, which decide what a sample shows."""

    models: frozenset[str]
    tenant: str | None  # whose queue is named; None for all tenants'
    may_operate: bool


class LiveSamples:
    """The latest sample, collected again when it is older than the interval."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        metrics: ServiceMetrics,
        other_metrics: OtherMetrics | None = None,
        scaling_decisions: ScalingDecisionsOf | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._other_metrics = other_metrics
        self._scaling_decisions = scaling_decisions
        self._clock = clock
        self._lock = asyncio.Lock()
        self._collected_s = float("-inf")
        self._sample: dict[str, Any] = {}
        self._queues: dict[str, Counter[tuple[str, int]]] = {}  # by model; how many of each tenant and priority
        self._encoded: dict[Viewer, bytes] = {}

    async def latest(self, viewer: Viewer) -> bytes:
        """Return the latest sample for a viewer as an event."""
        async with self._lock:
            if self._clock() - self._collected_s >= INTERVAL_S / 2:
                await self._collect()
        if (encoded := self._encoded.get(viewer)) is None:
            models = {
                name: {**model, "queue": _queue_rows(self._queues[name], viewer.tenant)}
                for name, model in self._sample["models"].items()
                if name in viewer.models
            }
            sample = {**self._sample, "may_operate": viewer.may_operate, "models": models}
            encoded = event(json.dumps(sample, separators=(",", ":")).encode())
            self._encoded[viewer] = encoded
        return encoded

    async def _collect(self) -> None:
        others = [] if self._other_metrics is None else await self._other_metrics()
        snapshots = [self._metrics.snapshot(), *others]
        models = {name: _model_sample(name, model, snapshots) for name, model in base_models(self._models).items()}
        self._queues = {name: _added_queues(name, snapshots) for name in models}
        if self._scaling_decisions is not None:
            for name, model in models.items():
                model["scaling"] = list(await self._scaling_decisions(name))
        self._sample = {"time_s": time.time(), "num_routers": len(snapshots), "models": models}
        self._encoded = {}
        self._collected_s = self._clock()


def add_live_route(
    app: FastAPI, models: Mapping[str, ServedModel], samples: LiveSamples, *, has_operations: bool = False
) -> None:
    """Add the path to an application; with operations the samples say whether the caller may run them."""
    streams = LiveStreams()

    async def live(request: Request) -> Response:
        """Stream a sample a second of models and engines, for fifteen seconds."""
        caller, address = caller_of(request), "" if request.client is None else request.client.host
        is_operator = caller.has_scope(Scope.OPERATE)
        if caller.key is None:
            is_operator = is_here(address, request.headers)
        sees_all = caller.has_scope(Scope.OPERATE) and (caller.key is not None or not caller.tenant)
        viewer = Viewer(
            models=frozenset(usable_models(request, models)),
            tenant=None if sees_all else caller.tenant,
            may_operate=has_operations and is_operator,
        )
        return LiveResponse(_events(samples, viewer), streams, address)

    described = responses(None, 503, *READ_ERRORS)
    described[503]["description"] = "Too many streams are open; see Retry-After"
    described[200]["content"] = {EVENT_STREAM.partition(";")[0]: {"schema": _SAMPLE}}
    add_documented_route(app, PATH, live, methods=["GET"], responses=described)


async def _events(samples: LiveSamples, viewer: Viewer) -> AsyncIterator[bytes]:
    for _ in range(int(STREAM_S / INTERVAL_S)):
        yield await samples.latest(viewer)
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
        "engines": {
            engine: _engine_sample(stats, status.descriptions.get(engine))
            for engine, stats in sorted(status.engines.items())
        },
    }


def _added_queues(name: str, snapshots: Sequence[MetricsSnapshot]) -> Counter[tuple[str, int]]:
    added: Counter[tuple[str, int]] = Counter()
    for snapshot in snapshots:
        if name in snapshot.models:
            added.update(snapshot.models[name].queued_by)
    return added


def _queue_rows(queued: Counter[tuple[str, int]], tenant: str | None) -> list[dict[str, Any]]:
    """List how many requests wait by tenant and priority; of tenants that the viewer may not see only by priority."""
    shown: Counter[tuple[str, int]] = Counter()
    for rank, ((name, priority), count) in enumerate(queued.most_common()):
        is_named = (tenant is None or name == tenant) and rank < MAX_QUEUE_ROWS
        shown[name if is_named else OTHER_TENANTS, priority] += count
    return [
        {"tenant": name, "priority": priority, "waiting": count}
        for (name, priority), count in sorted(shown.items(), key=lambda row: (row[0][1], row[0][0]))
    ]


def _engine_sample(stats: EngineStats, described: ModelDescription | None) -> dict[str, Any]:
    of_engine = (
        {}
        if described is None
        else {
            "device": described.device,
            "kernels": described.kernels,
            "max_num_seqs": described.max_num_seqs,
            "weights_version": described.weights_version,
        }
    )
    return {
        **of_engine,
        "state": stats.state.value,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "kv_blocks_used": stats.kv_blocks_used,
        "kv_blocks_cached": stats.kv_blocks_cached,
        "kv_blocks_total": stats.kv_blocks_total,
        "preemptions": stats.num_preemptions_total,
        "steps": stats.num_steps_total,
        "draft_tokens": stats.draft_tokens_total,
        "accepted_draft_tokens": stats.accepted_draft_tokens_total,
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
