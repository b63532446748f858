"""A streaming load client for any OpenAI-compatible server: a fixed number of clients, or arrivals at a given rate."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from rich.console import Console

from rayinfer.benchmark.load.report import Environment, Percentiles, describe_environment, percentiles
from rayinfer.benchmark.load.workloads import DEFAULT_VOCAB_SIZE, LengthRange, Workload, serving_workload
from rayinfer.benchmark.tables import print_percentiles, print_rows
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
class Answer:
    """Measurements of one request; times are in seconds."""

    first_token_s: float | None = None
    end_to_end_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)  # between one chunk and the next
    chunk_tokens: list[int | None] = field(default_factory=list)  # of every chunk; None when it does not say
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def inter_token_s(self) -> list[float]:
        """One latency per token after the first chunk: a chunk of k tokens counts as k latencies of a k-th.

        A chunk that does not say how many tokens it carries is given the mean of those that the usage leaves over.
        """
        told = sum(tokens for tokens in self.chunk_tokens if tokens is not None)
        silent = self.chunk_tokens.count(None)
        mean = max(1.0, (self.output_tokens - told) / silent) if silent else 1.0
        latencies: list[float] = []
        for gap, tokens in zip(self.gaps_s, self.chunk_tokens[1:], strict=True):
            share = tokens or mean
            latencies.extend([gap / share] * max(1, round(share)))
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


async def run_load(
    plan: LoadPlan, on_answer: Callable[[], None] = lambda: None, on_start: Callable[[], None] = lambda: None
) -> ServingReport:
    """Send the plan's requests and summarise their measurements.

    One request goes first, alone and uncounted, and then `on_start` is called. Raises RayinferError when even that one
    fails.
    """
    workload = serving_workload(plan.num_requests, plan.input_len, plan.output_len, plan.vocab_size, plan.seed)
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s)
    connector = aiohttp.TCPConnector(limit=0, force_close=not plan.reuse_connections)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        warm_up = await _ask(session, plan, workload.prompts[0], workload.output_lengths[0])
        if warm_up.error is not None:
            raise RayinferError(f"the warm-up request to {plan.completions_url} failed: {warm_up.error}")
        on_start()
        started = time.perf_counter()
        answers = await _ask_all(session, plan, workload, on_answer)
        seconds = time.perf_counter() - started
    return _summarise(plan, answers, seconds)


async def _ask_all(
    session: aiohttp.ClientSession, plan: LoadPlan, workload: Workload, on_answer: Callable[[], None]
) -> list[Answer]:
    free_clients = asyncio.Semaphore(plan.concurrency)

    async def ask(prompt: list[int], length: int) -> Answer:
        async with free_clients if plan.request_rate is None else contextlib.nullcontext():
            answer = await _ask(session, plan, prompt, length)
        on_answer()
        return answer

    arrivals = random.Random(plan.seed + 1)
    async with asyncio.TaskGroup() as group:
        tasks = []
        for prompt, length in zip(workload.prompts, workload.output_lengths, strict=True):
            tasks.append(group.create_task(ask(prompt, length)))
            if plan.request_rate is not None:
                await asyncio.sleep(arrivals.expovariate(plan.request_rate))
    return [task.result() for task in tasks]


async def _ask(session: aiohttp.ClientSession, plan: LoadPlan, prompt: list[int], output_len: int) -> Answer:
    body = {
        "model": plan.model,
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(prompt_tokens=len(prompt))
    started = time.perf_counter()
    try:
        async with session.post(plan.completions_url, json=body) as response:
            if response.status != 200:
                text = (await response.text())[:ERROR_TEXT_LIMIT]
                answer.error = f"HTTP {response.status}: {' '.join(text.split())}"
                return answer
            await _read_stream(response, answer, started)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"[:ERROR_TEXT_LIMIT]
    else:
        answer.end_to_end_s = time.perf_counter() - started
    return answer


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer, started: float) -> None:
    last, is_complete = started, False
    async for event in _events(response):
        if event is None:
            is_complete = True
            break
        if error := event.get("error"):
            raise ValueError(error.get("message", error) if isinstance(error, dict) else error)
        tokens_before = answer.output_tokens
        if usage := event.get("usage"):
            answer.output_tokens = usage["completion_tokens"]
        if not any(map(_brings_token, event.get("choices") or ())):
            continue
        now = time.perf_counter()
        if answer.first_token_s is None:
            answer.first_token_s = now - started
        else:
            answer.gaps_s.append(now - last)
        answer.chunk_tokens.append(answer.output_tokens - tokens_before if usage else None)
        last = now
    if not is_complete:
        raise ValueError("the stream was cut before [DONE]")
    if answer.first_token_s is None:
        raise ValueError("the stream held no token")


def _brings_token(choice: dict[str, Any]) -> bool:
    """Return whether a chunk carries a token; one with only the finish reason does not."""
    return bool(choice.get("text")) or choice.get("finish_reason") is None


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """Yield each server-sent event's JSON, and None for [DONE]."""
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            yield None if data == b"[DONE]" else json.loads(data)


def _summarise(plan: LoadPlan, answers: list[Answer], seconds: float) -> ServingReport:
    good = [answer for answer in answers if answer.error is None]
    output_tokens = sum(answer.output_tokens for answer in good)
    chunks = sum(1 + len(answer.gaps_s) for answer in good)
    errors = Counter(answer.error for answer in answers if answer.error is not None)
    return ServingReport(
        base_url=plan.base_url,
        model=plan.model,
        concurrency=plan.concurrency if plan.request_rate is None else None,
        request_rate=plan.request_rate,
        num_requests=plan.num_requests,
        input_len=plan.input_len,
        output_len=plan.output_len,
        completed=len(good),
        failed=len(answers) - len(good),
        errors=dict(errors.most_common()),
        secs=round(seconds, 4),
        out_tok_s=round(output_tokens / seconds, 2),
        total_tok_s=round((output_tokens + sum(answer.prompt_tokens for answer in good)) / seconds, 2),
        req_s=round(len(good) / seconds, 3),
        output_tokens=output_tokens,
        ttft=percentiles([answer.first_token_s for answer in good if answer.first_token_s is not None]),
        inter_token=percentiles([latency for answer in good for latency in answer.inter_token_s]),
        end_to_end=percentiles([answer.end_to_end_s for answer in good if answer.end_to_end_s is not None]),
        tokens_per_chunk=round(output_tokens / chunks, 3) if chunks else None,
    )


def print_serving_report(report: ServingReport, console: Console) -> None:
    """Show the result as tables."""
    clients = f"{report.concurrency} clients" if report.concurrency else f"{report.request_rate:g} arrivals/s"
    rows: dict[str, object] = {
        "completed": report.completed,
        "failed": report.failed,
        "seconds": report.secs,
        "output tokens/s": report.out_tok_s,
        "total tokens/s": report.total_tok_s,
        "requests/s": report.req_s,
        "tokens per chunk": report.tokens_per_chunk,
    }
    print_rows(f"{report.model} at {report.base_url}, {clients}", rows, console)
    spreads = {"first token": report.ttft, "inter-token": report.inter_token, "end to end": report.end_to_end}
    print_percentiles("latency", spreads, console)
    for reason, count in report.errors.items():
        console.print(f"{count} x {reason}", markup=False, style="red")
