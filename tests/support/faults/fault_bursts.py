"""Many requests at one moment, on connections that are open already: clients that do next to nothing themselves."""

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from typing import Any

import httpx

from support.faults.fault_load import ANSWER_WITHIN_S, Answer, note_event


def ask_at_once(url: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Connect for every body, then send all; `first_s` is when an answer's head came."""
    return asyncio.run(_ask_at_once(httpx.URL(url), bodies))


def request_bytes(url: httpx.URL | str, body: dict[str, Any]) -> bytes:
    """Write a request for a completion as it goes over the wire; the connection is closed after it."""
    request = httpx.Request("POST", f"{url}/v1/completions", json=body, headers={"Connection": "close"})
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return f"POST {request.url.path} HTTP/1.1\r\n{head}\r\n".encode() + request.content


async def _ask_at_once(url: httpx.URL, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    lines = [await asyncio.open_connection(url.host, url.port, family=socket.AF_INET) for _ in bodies]
    answers = [Answer(body) for body in bodies]
    wires = [request_bytes(url, body) for body in bodies]
    for answer, (_, writer), wire in zip(answers, lines, wires, strict=True):
        answer.started_s = time.monotonic()
        writer.write(wire)
    await asyncio.gather(*(_read(answer, *line) for answer, line in zip(answers, lines, strict=True)))
    return answers


async def _read(answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
            answer.first_s = time.monotonic()
            status, *headers = head.decode().splitlines()
            answer.status = int(status.split()[1])
            named = dict(header.lower().split(": ", 1) for header in headers if header)
            answer.retry_after = named.get("retry-after")
            _note_body(answer, (await reader.read()).decode())
    except TimeoutError:
        answer.is_hung = True
    except (OSError, EOFError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended_s = time.monotonic()
    writer.close()


def _note_body(answer: Answer, body: str) -> None:
    """Take over an answer in events, around which the lines of chunked coding are not looked at."""
    if answer.status != 200:
        answer.error = body
        return
    for line in body.splitlines():
        if line == "data: [DONE]":
            answer.is_complete = True
        elif line.startswith("data: "):
            answer.num_pieces += 1
            note_event(answer, json.loads(line.removeprefix("data: ")))
