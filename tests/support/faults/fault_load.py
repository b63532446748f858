"""Clients of a service under faults, which count their requests and outcomes themselves."""

import asyncio
import base64
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.faults.fault_models import SERVED_NAME

ANSWER_WITHIN_S = 90.0  # longer is hung
RECONNECT_S = 0.1
REFUSALS = (429, 503)  # allowed, if they say when to come back

KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 0.7, "seed": 8, "presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    {"temperature": 0.8, "seed": 9, "n": 3},
    {"temperature": 0, "stop": ["zzzz never", "qqqq"]},
    {"temperature": 0, "logprobs": 2},
]


def request_body(number: int, *, max_tokens: int = 64, is_mixed: bool = True, **fields: Any) -> dict[str, Any]:
    """Return the request of a number, always the same: of one kind after the other, or greedy."""
    kind = KINDS[number % len(KINDS)] if is_mixed else KINDS[0]
    prompt = f"Story {number}: once upon a time"
    return {"model": SERVED_NAME, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **kind, **fields}


def image_body(number: int, image: bytes, *, max_tokens: int = 64, **fields: Any) -> dict[str, Any]:
    """Return the request of a number about an image, as a conversation."""
    kind = KINDS[number % len(KINDS)]
    if "logprobs" in kind:
        kind = kind | {"logprobs": True, "top_logprobs": kind["logprobs"]}
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": f"Story {number}:"}]
    messages = [{"role": "user", "content": content}]
    return {"model": SERVED_NAME, "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, **kind, **fields}


@dataclass
class Answer:
    """Response that one client received."""

    body: dict[str, Any]
    number: int | None = None  # by which its answer is known
    choices: dict[int, tuple[str, str | None]] = field(default_factory=dict)  # text and reason of its end, by index
    usage: int | None = None  # tokens of the answer
    status: int | None = None  # None: the connection broke before there was one
    retry_after: str | None = None
    error: Any = None
    is_complete: bool = False  # it ended as it should, with `[DONE]` if it was a stream
    is_hung: bool = False
    started_s: float = 0.0
    ended_s: float | None = None
    first_s: float | None = None  # when the first piece came
    gaps_s: list[float] = field(default_factory=list)  # before the first piece, and between the others
    num_pieces: int = 0

    @property
    def longest_gap_s(self) -> float:
        """The longest time without a piece."""
        return max(self.gaps_s, default=0.0)

    def gap_at_s(self, moment_s: float) -> float:
        """The longest time without a piece that a moment fell into, or that began within a second of it."""
        longest_s, end_s = 0.0, self.started_s
        for gap_s in self.gaps_s:
            begin_s, end_s = end_s, end_s + gap_s
            if begin_s <= moment_s + 1.0 and end_s >= moment_s:
                longest_s = max(longest_s, gap_s)
        return longest_s

    def verdict(self, expected: "Answer | None") -> str:
        """Say what a client would: exact, wrong, refused, failed or hung."""
        if self.is_hung:
            return "hung"
        if self.status in REFUSALS and self.retry_after is not None:
            return "refused"
        if self.status != 200 or self.error is not None or not self.is_complete:
            return "failed"
        if expected is not None and (self.choices, self.usage) != (expected.choices, expected.usage):
            return "wrong"
        return "exact"


async def ask(http: httpx.AsyncClient, answer: Answer, *, within_s: float = ANSWER_WITHIN_S) -> Answer:
    """Send the answer's request, as a stream or whole as its body says, and fill in what comes back.

    A stream that hangs has been without a piece since its last one, which is a gap as well.
    """
    answer.started_s = time.monotonic()
    try:
        async with asyncio.timeout(within_s):
            await (_read_stream if answer.body.get("stream") else _read_whole)(http, answer)
    except TimeoutError:
        answer.is_hung = True
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended_s = time.monotonic()
    if answer.is_hung:
        answer.gaps_s.append(answer.ended_s - answer.started_s - sum(answer.gaps_s))
    return answer


def _path(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


async def _read_whole(http: httpx.AsyncClient, answer: Answer) -> None:
    response = await http.post(_path(answer.body), json=answer.body)
    _note_head(answer, response)
    if response.status_code == 200:
        note_event(answer, response.json())
        answer.is_complete = True
    else:
        answer.error = response.text


async def _read_stream(http: httpx.AsyncClient, answer: Answer) -> None:
    body = answer.body | {"stream_options": {"include_usage": True}}
    async with http.stream("POST", _path(body), json=body) as response:
        _note_head(answer, response)
        if response.status_code != 200:
            answer.error = (await response.aread()).decode()
            return
        last = answer.started_s
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            now = time.monotonic()
            answer.gaps_s.append(now - last)
            last = now
            answer.first_s = answer.first_s or now
            answer.num_pieces += 1
            if line == "data: [DONE]":
                answer.is_complete = True
            else:
                note_event(answer, json.loads(line.removeprefix("data: ")))


def _note_head(answer: Answer, response: httpx.Response) -> None:
    answer.status, answer.retry_after = response.status_code, response.headers.get("retry-after")


def note_event(answer: Answer, event: dict[str, Any]) -> None:
    """Take over what one event of a stream says, or a whole answer."""
    if "error" in event:
        answer.error = event["error"]
        return
    for choice in event["choices"]:
        text, reason = answer.choices.get(choice["index"], ("", None))
        message = choice.get("delta") or choice.get("message") or {}  # of a conversation
        piece = choice.get("text") or message.get("content") or ""
        answer.choices[choice["index"]] = (text + piece, choice["finish_reason"] or reason)
    if event.get("usage"):
        answer.usage = event["usage"]["completion_tokens"]


def ask_all(url: str, bodies: Iterable[dict[str, Any]], *, within_s: float = ANSWER_WITHIN_S) -> list[Answer]:
    """Send requests at once, each on a connection of its own, and wait for all."""

    async def run() -> list[Answer]:
        async with new_client(url) as http:
            return await asyncio.gather(*(ask(http, Answer(body), within_s=within_s) for body in bodies))

    return asyncio.run(run())


def new_client(url: str) -> httpx.AsyncClient:
    """A client that opens as many connections as it has requests."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(None, connect=10.0), trust_env=False, limits=limits)


class Load:
    """Streams that follow each other, side by side, and whole answers at a steady pace, until the block ends.

    `expected` holds the answers to all requests, by number, as they were before anything was broken; they are sent in
    the order of `numbers`, or one after the other.
    """

    def __init__(
        self,
        url: str,
        expected: dict[int | None, Answer],
        *,
        num_streams: int,
        whole_per_s: float,
        within_s: float = ANSWER_WITHIN_S,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.answers: list[Answer] = []  # of all requests, those in flight included
        self.struck_s: float | None = None  # when the fault came
        self._url = url
        self._expected = expected
        self._numbers = itertools.cycle(sorted(expected)) if numbers is None else numbers
        self._num_streams = num_streams
        self._whole_per_s = whole_per_s
        self._within_s = within_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send nothing more, and wait for what was sent."""
        self._is_over.set()
        self._thread.join()

    def streams_in_flight(self, min_pieces: int) -> int:
        """Count the streams that have got so many pieces and go on."""
        return sum(answer.ended_s is None and answer.num_pieces >= min_pieces for answer in list(self.answers))

    def verdicts(self, is_counted: Callable[[Answer], bool] = lambda _: True) -> Counter[str]:
        """Count what became of the requests."""
        return Counter(self.verdict_of(answer) for answer in self.answers if is_counted(answer))

    def first_failure(self) -> str:
        """Say of what the first one failed; nothing if none did."""
        failed = (answer for answer in self.answers if self.verdict_of(answer) == "failed")
        return next((f"{answer.status} {answer.error}" for answer in failed), "")

    def verdict_of(self, answer: Answer) -> str:
        """Judge one answer."""
        return answer.verdict(self._expected[answer.number])

    @property
    def longest_gap_s(self) -> float:
        """The longest time without a piece, in any stream."""
        return max((answer.longest_gap_s for answer in self.answers), default=0.0)

    @property
    def struck_gap_s(self) -> float | None:
        """Return the longest gap in the streams that the fault struck; None if its time is not known."""
        if self.struck_s is None:
            return None
        return max((answer.gap_at_s(self.struck_s) for answer in self.answers), default=0.0)

    def strike(self) -> None:
        """Note that a fault comes now: how long streams pause because of it is asked of those that it strikes."""
        self.struck_s = time.monotonic()

    async def _run(self) -> None:
        async with new_client(self._url) as http:
            self._http = http
            streams = [asyncio.ensure_future(self._stream_on()) for _ in range(self._num_streams)]
            wholes: list[asyncio.Future[None]] = []
            while not self._is_over.is_set():
                if self._whole_per_s:
                    wholes.append(asyncio.ensure_future(self._send(stream=False)))
                await asyncio.sleep(1 / (self._whole_per_s or 20.0))
            await asyncio.gather(*streams, *wholes)

    async def _stream_on(self) -> None:
        while not self._is_over.is_set():
            await self._send(stream=True)

    async def _send(self, *, stream: bool) -> None:
        number = next(self._numbers)
        answer = Answer(self._expected[number].body | {"stream": stream}, number)
        self.answers.append(answer)
        await ask(self._http, answer, within_s=self._within_s)
        if answer.retry_after is not None:
            await asyncio.sleep(min(float(answer.retry_after), 1.0))
        elif answer.status is None:
            await asyncio.sleep(RECONNECT_S)


def record_answers(
    url: str, bodies: dict[int, dict[str, Any]], *, within_s: float = ANSWER_WITHIN_S
) -> dict[int | None, Answer]:
    """Ask everything once while nothing is broken."""
    answers = dict(zip(bodies, ask_all(url, bodies.values(), within_s=within_s), strict=True))
    for answer in answers.values():
        assert answer.verdict(None) == "exact", answer
    return answers
