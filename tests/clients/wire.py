"""Requests as they are on the wire, for checks of what no client would send or show."""

import json
from typing import Any

import httpx


def ask(method: str, url: str, path: str, status: int = 200, body: Any = None, **settings: Any) -> Any:
    answer = httpx.request(method, url + path, json=body, timeout=120, trust_env=False, **settings)
    assert answer.status_code == status, (path, body, answer.status_code, answer.text)
    return answer.json()


def events(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = httpx.post(url + path, json=body | {"stream": True}, timeout=120, trust_env=False)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for part in filter(None, answer.text.split("\n\n")):
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def kinds_of(found: list[dict[str, Any]]) -> list[str]:
    """Return the types in order, each run of deltas once."""
    kinds = [event["type"] for event in found]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
