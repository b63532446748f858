"""A streaming load client for any OpenAI-compatible server: a fixed number of clients, or arrivals at a given rate."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from rayinfer.benchmark.load.workloads import DEFAULT_VOCAB_SIZE, LengthRange, Workload, serving_workload
from rayinfer.benchmark.report import (
    PERCENTILE_HEADS,
    Environment,
    Percentiles,
    Table,
    describe_environment,
    percentiles,
)
from rayinfer.errors import ConfigError, RayinferError

ERROR_TEXT_LIMIT = 200  # characters of a server's error that are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadPlan:
    """Server, workload and arrival process of a load test."""

    base_url: str  # with or without /v1
    model: str
    num_requests: int
    input_len: int | LengthRange
    output_len: int | LengthRange
    concurrency: int = 1
    request_rate: float | None = None  # mean arrivals a second (Poisson); the number of clients is then unbounded
    vocab_size: int = DEFAULT_VOCAB_SIZE
    seed: int = 0
    api_key: str | None = None
    timeout_s: float = 600.0
    reuse_connections: bool = True  # some servers close an idle one just when the next request is sent on it

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, got {self.concurrency}")
        if self.request_rate is not None and not self.request_rate > 0:
            raise ConfigError(f"request_rate must be above 0, got {self.request_rate}")

    @property
    def completions_url(self) -> str:
        """Return the URL of the completions endpoint."""
        return self.base_url.rstrip("/").removesuffix("/v1") + "/v1/completions"


@dataclass(kw_only=True, slots=True)
class RequestTimes:
    """Times and tokens of one request; times are in seconds."""

    first_token_s: float | None = None
    end_to_end_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)  # between one chunk and the next
    chunk_tokens: list[int | None] = field(default_factory=list)  # of every chunk; None when it has no usage
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def inter_token_s(self) -> list[float]:
        """One latency per token after the first chunk: a chunk of k tokens counts as k latencies of a k-th.

        A chunk without a usage of its own gets the mean of the tokens that the final usage leaves over.
        """
        reported = sum(tokens for tokens in self.chunk_tokens if tokens is not None)
        num_unreported = self.chunk_tokens.count(None)
        mean = max(1.0, (self.output_tokens - reported) / num_unreported) if num_unreported else 1.0
        latencies: list[float] = []
        for gap, tokens in zip(self.gaps_s, self.chunk_tokens[1:], strict=True):
            num_tokens = tokens or mean
            latencies.extend([gap / num_tokens] * max(1, round(num_tokens)))
        return latencies


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingReport:
    """A load test's result; the spreads are in milliseconds."""

    base_url: str
    model: str
    concurrency: int | None  # None with arrivals at a rate
    request_rate: float | None
    num_requests: int
    input_len: int | LengthRange
    output_len: int | LengthRange
    completed: int
    failed: int
    errors: dict[str, int]  # how often, by reason
    secs: float
    out_tok_s: float
    total_tok_s: float
    req_s: float
    output_tokens: int
    ttft: Percentiles | None
    inter_token: Percentiles | None
    end_to_end: Percentiles | None
    tokens_per_chunk: float | None  # above 1: inter-token latencies are gaps divided by the chunk's tokens
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return rates and latencies, with the reasons of failures."""
        clients = f"{self.concurrency} clients" if self.concurrency else f"{self.request_rate:g} arrivals/s"
        rates = [
            ("completed", self.completed),
            ("failed", self.failed),
            ("seconds", self.secs),
            ("output tokens/s", self.out_tok_s),
            ("total tokens/s", self.total_tok_s),
            ("requests/s", self.req_s),
            ("tokens per chunk", self.tokens_per_chunk),
        ]
        spreads = {"first token": self.ttft, "inter-token": self.inter_token, "end to end": self.end_to_end}
        latencies = [spread.row(name) for name, spread in spreads.items() if spread is not None]
        tables = [
            Table(f"{self.model} at {self.base_url}, {clients}", ("", "figure"), rates),
            Table("latency", PERCENTILE_HEADS, latencies),
        ]
        return [*tables, Table("errors", ("reason", "count"), list(self.errors.items()))] if self.errors else tables


Send = Callable[[list[int], int], Awaitable[RequestTimes]]  # a prompt, and the length of its output


@asynccontextmanager
async def completions_client(plan: LoadPlan) -> AsyncIterator[Send]:
    """Open a client of a server's completions, streamed as server-sent events."""
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s)
    connector = aiohttp.TCPConnector(limit=0, force_close=not plan.reuse_connections)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        yield lambda prompt, output_len: _send(session, plan, prompt, output_len)


async def run_load(
    plan: LoadPlan,
    on_progress: Callable[[int], None] = lambda num_finished: None,
    on_start: Callable[[], None] = lambda: None,
    open_client: Callable[[LoadPlan], AbstractAsyncContextManager[Send]] = completions_client,
) -> ServingReport:
    """Send the plan's requests and summarize their measurements.

    One request goes first, alone and uncounted, and then `on_start` is called. Raises RayinferError when even that one
    fails.
    """
    workload = serving_workload(plan.num_requests, plan.input_len, plan.output_len, plan.vocab_size, plan.seed)
    async with open_client(plan) as send:
        warm_up = await send(workload.prompts[0], workload.output_lengths[0])
        if warm_up.error is not None:
            raise RayinferError(f"the warm-up request to {plan.base_url} failed: {warm_up.error}")
        on_start()
        started = time.perf_counter()
        results = await _send_all(send, plan, workload, on_progress)
        seconds = time.perf_counter() - started
    return _summarize(plan, results, seconds)


async def _send_all(
    send: Send, plan: LoadPlan, workload: Workload, on_progress: Callable[[int], None]
) -> list[RequestTimes]:
    free_clients, num_finished = asyncio.Semaphore(plan.concurrency), 0

    async def send_one(prompt: list[int], length: int) -> RequestTimes:
        nonlocal num_finished
        async with free_clients if plan.request_rate is None else contextlib.nullcontext():
            times = await send(prompt, length)
        num_finished += 1
        on_progress(num_finished)
        return times

    arrivals = random.Random(plan.seed + 1)
    async with asyncio.TaskGroup() as group:
        tasks = []
        for prompt, length in zip(workload.prompts, workload.output_lengths, strict=True):
            tasks.append(group.create_task(send_one(prompt, length)))
            if plan.request_rate is not None:
                await asyncio.sleep(arrivals.expovariate(plan.request_rate))
    return [task.result() for task in tasks]


async def _send(session: aiohttp.ClientSession, plan: LoadPlan, prompt: list[int], output_len: int) -> RequestTimes:
    body = {
        "model": plan.model,
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    times = RequestTimes(prompt_tokens=len(prompt))
    started = time.perf_counter()
    try:
        async with session.post(plan.completions_url, json=body) as response:
            if response.status != 200:
                text = (await response.text())[:ERROR_TEXT_LIMIT]
                times.error = f"HTTP {response.status}: {' '.join(text.split())}"
                return times
            await _read_stream(response, times, started)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        times.error = f"{type(error).__name__}: {error}"[:ERROR_TEXT_LIMIT]
    else:
        times.end_to_end_s = time.perf_counter() - started
    return times


async def _read_stream(response: aiohttp.ClientResponse, times: RequestTimes, started: float) -> None:
    last, is_complete = started, False
    async for event in _events(response):
        if event is None:
            is_complete = True
            break
        if error := event.get("error"):
            raise ValueError(error.get("message", error) if isinstance(error, dict) else error)
        tokens_before = times.output_tokens
        if usage := event.get("usage"):
            times.output_tokens = usage["completion_tokens"]
        if not any(map(_has_token, event.get("choices") or ())):
            continue
        now = time.perf_counter()
        if times.first_token_s is None:
            times.first_token_s = now - started
        else:
            times.gaps_s.append(now - last)
        times.chunk_tokens.append(times.output_tokens - tokens_before if usage else None)
        last = now
    if not is_complete:
        raise ValueError("the stream was cut before [DONE]")
    if times.first_token_s is None:
        raise ValueError("the stream held no token")


def _has_token(choice: dict[str, Any]) -> bool:
    """Return whether a chunk carries a token; one with only the finish reason does not."""
    return bool(choice.get("text")) or choice.get("finish_reason") is None


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """Yield each server-sent event's JSON, and None for [DONE]."""
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            yield None if data == b"[DONE]" else json.loads(data)


def _summarize(plan: LoadPlan, results: list[RequestTimes], seconds: float) -> ServingReport:
    good = [times for times in results if times.error is None]
    output_tokens = sum(times.output_tokens for times in good)
    chunks = sum(1 + len(times.gaps_s) for times in good)
    errors = Counter(times.error for times in results if times.error is not None)
    return ServingReport(
        base_url=plan.base_url,
        model=plan.model,
        concurrency=plan.concurrency if plan.request_rate is None else None,
        request_rate=plan.request_rate,
        num_requests=plan.num_requests,
        input_len=plan.input_len,
        output_len=plan.output_len,
        completed=len(good),
        failed=len(results) - len(good),
        errors=dict(errors.most_common()),
        secs=round(seconds, 4),
        out_tok_s=round(output_tokens / seconds, 2),
        total_tok_s=round((output_tokens + sum(times.prompt_tokens for times in good)) / seconds, 2),
        req_s=round(len(good) / seconds, 3),
        output_tokens=output_tokens,
        ttft=percentiles([times.first_token_s for times in good if times.first_token_s is not None]),
        inter_token=percentiles([latency for times in good for latency in times.inter_token_s]),
        end_to_end=percentiles([times.end_to_end_s for times in good if times.end_to_end_s is not None]),
        tokens_per_chunk=round(output_tokens / chunks, 3) if chunks else None,
    )
