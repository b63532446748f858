"""One line about a traced request: its times, tokens and engines; the prompt only where the service keeps it."""

from collections.abc import Iterable
from typing import Any

from rayinfer.outputs import TraceEvent, TraceEventName
from rayinfer.servers.served_model import ServedModel
from rayinfer.traces.trace_store import StoredTrace

MAX_PROMPT_CHARS = 500


def summary_of(kept: StoredTrace, model: ServedModel | None, *, names_tenant: bool) -> dict[str, Any]:
    """Summarize a trace; its tenant is named only to callers that see those of all."""
    events = kept.trace.in_order()
    received_s = events[0].time_s
    finished = _all(events, "finished")
    state = "running" if kept.running else "finished" if finished else "queued"
    summary: dict[str, Any] = {
        "id": kept.response_id,
        "object": "request",
        "model": kept.model,
        "received_s": received_s,
        "state": state,
        "num_prompts": len(kept.prompts),
        "prompt_tokens": _sum_of_prompts(_all(events, "queued"), "prompt_tokens"),
        "cached_tokens": _sum_of_prompts(_all(events, "admitted"), "cached_tokens"),
        "output_tokens": _sum(finished, "output_tokens"),
        "draft_tokens": _sum(_all(events, "speculated"), "draft_tokens"),
        "accepted_draft_tokens": _sum(_all(events, "speculated"), "accepted_tokens"),
        "finish_reasons": sorted({str(event.details.get("reason", "")) for event in finished}),
        "engines": list(dict.fromkeys(str(event.details["engine"]) for event in _all(events, "dispatched"))),
        "migrations": len(_all(events, "migrated")),
        "preemptions": len(_all(events, "preempted")),
        "queue_s": _since(received_s, _all(events, "dispatched")[:1]),
        "first_token_s": _first_token_s(received_s, events),
        "total_s": None if state != "finished" else _since(received_s, finished[-1:]),
    }
    if names_tenant:
        summary["tenant"] = kept.tenant
    if kept.prompt_token_ids and model is not None:
        summary["prompt"] = model.tokenizer.decode(list(kept.prompt_token_ids))[:MAX_PROMPT_CHARS]
    return summary


def _all(events: Iterable[TraceEvent], name: TraceEventName) -> list[TraceEvent]:
    return [event for event in events if event.name == name]


def _sum(events: Iterable[TraceEvent], detail: str) -> int:
    return sum(int(event.details.get(detail, 0)) for event in events)


def _sum_of_prompts(events: Iterable[TraceEvent], detail: str) -> int:
    """Add up what choices and attempts of a prompt share: the first one of each prompt counts."""
    by_prompt: dict[Any, int] = {}
    for event in events:
        by_prompt.setdefault(event.details.get("prompt"), int(event.details.get(detail, 0)))
    return sum(by_prompt.values())


def _first_token_s(received_s: float, events: list[TraceEvent]) -> float | None:
    """Return the least time to a first token, of what engines recorded and, of lost engines, routers."""
    of_lost = [
        float(event.details["first_token_s"]) for event in _all(events, "migrated") if "first_token_s" in event.details
    ]
    recorded = _since(received_s, _all(events, "first_token")[:1])
    return min(of_lost if recorded is None else [*of_lost, recorded], default=None)


def _since(start_s: float, events: list[TraceEvent]) -> float | None:
    return round(max(0.0, events[0].time_s - start_s), 6) if events else None
