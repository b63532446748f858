"""Effect of a full queue of batch rows on interactive requests: their time to the first token, without and with it.

Both phases alternate on one running service. While rows wait, the engine is busy in every step, so the gap between two
tokens of an interactive stream is the time of a step.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from rayinfer.benchmark.load.load_client import LoadPlan, RequestTimes, Send, completions_client
from rayinfer.benchmark.load.workloads import DEFAULT_VOCAB_SIZE, LengthRange, serving_workload
from rayinfer.benchmark.report import (
    PERCENTILE_HEADS,
    Environment,
    Percentiles,
    Table,
    describe_environment,
    percentiles,
)
from rayinfer.errors import RayinferError

ENDPOINT = "/v1/completions"
START_TIMEOUT_S = 300.0
END_TIMEOUT_S = 60.0
POLL_S = 0.1

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchEffectPlan:
    """Service, interactive requests of one client at a time, and the batch behind them."""

    base_url: str
    model: str
    num_rounds: int = 3
    num_requests: int = 30  # of each phase of a round
    input_len: int | LengthRange = 128
    output_len: int | LengthRange = 8
    max_pause_s: float = 0.5  # between two requests, at random
    settling_s: float = 3.0  # from the first finished row of a batch to the first request, for the engine to fill
    num_rows: int = 2000
    row_input_len: int | LengthRange = 128
    row_output_len: int | LengthRange = 128
    vocab_size: int = DEFAULT_VOCAB_SIZE
    seed: int = 0
    api_key: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundEffect:
    """First tokens of one round's two phases, and its steps meanwhile, in milliseconds."""

    alone: Percentiles
    beside_batch: Percentiles
    step: Percentiles

    @property
    def added_ms(self) -> float:
        """Difference of the two p95."""
        return self.beside_batch.p95 - self.alone.p95


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchEffectReport:
    """Result of `rayinfer bench batches`."""

    command: str
    rounds: list[RoundEffect]
    alone: Percentiles
    beside_batch: Percentiles
    step: Percentiles
    rows_per_s: float  # of the batch, in the phases with it
    added_ms: float = 0.0  # p95 beside the batch less p95 alone, over all rounds
    added_steps: float = 0.0  # the same in steps of their p95 time
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the times, and what the batch adds to them."""
        times = [
            self.alone.row("first token, alone"),
            self.beside_batch.row("first token, beside a full batch"),
            self.step.row("step, beside a full batch"),
        ]
        rounds = [
            (number + 1, each.alone.p95, each.beside_batch.p95, each.added_ms, each.step.p50, each.step.p95)
            for number, each in enumerate(self.rounds)
        ]
        figures = [
            ("p95 added, ms", self.added_ms),
            ("p95 added, in steps of the p95 time", self.added_steps),
            ("rows/s of the batch meanwhile", self.rows_per_s),
        ]
        return [
            Table("Interactive requests", PERCENTILE_HEADS, times),
            Table("Effect of the batch", ("", "figure"), figures),
            Table("Round by round, ms", ("round", "p95 alone", "beside", "added", "step p50", "step p95"), rounds),
        ]


async def measure_batch_effect(
    plan: BatchEffectPlan, command: str, log: Log, on_round: Callable[[BatchEffectReport], None] = lambda report: None
) -> BatchEffectReport:
    """Alternate both phases, and report after every round; raises RayinferError where the service fails a request."""
    load = LoadPlan(
        base_url=plan.base_url,
        model=plan.model,
        num_requests=1,
        input_len=plan.input_len,
        output_len=plan.output_len,
        api_key=plan.api_key,
    )
    alone: list[list[RequestTimes]] = []
    beside: list[list[RequestTimes]] = []
    rates: list[float] = []
    async with completions_client(load) as send, _batch_client(plan) as batches:
        for number in range(plan.num_rounds):
            log(f"round {number + 1} of {plan.num_rounds}: alone")
            alone.append(await _requests(plan, send, 2 * number))
            log(f"round {number + 1} of {plan.num_rounds}: beside a batch")
            async with batches.running(plan, number) as rate:
                beside.append(await _requests(plan, send, 2 * number + 1))
                rates.append(await rate())
            report = _report(command, alone, beside, rates)
            on_round(report)
    return report


def _report(
    command: str, alone: list[list[RequestTimes]], beside: list[list[RequestTimes]], rates: list[float]
) -> BatchEffectReport:
    rounds = [
        RoundEffect(alone=_first_tokens(without), beside_batch=_first_tokens(with_rows), step=_steps(with_rows))
        for without, with_rows in zip(alone, beside, strict=True)
    ]
    all_alone, all_beside = [*_flat(alone)], [*_flat(beside)]
    times, times_beside, step = _first_tokens(all_alone), _first_tokens(all_beside), _steps(all_beside)
    return BatchEffectReport(
        command=command,
        rounds=rounds,
        alone=times,
        beside_batch=times_beside,
        step=step,
        rows_per_s=round(sum(rates) / len(rates), 2),
        added_ms=round(times_beside.p95 - times.p95, 3),
        added_steps=round((times_beside.p95 - times.p95) / step.p95, 3),
    )


async def _requests(plan: BatchEffectPlan, send: Send, phase: int) -> list[RequestTimes]:
    seed = plan.seed + 1 + phase
    workload = serving_workload(plan.num_requests, plan.input_len, plan.output_len, plan.vocab_size, seed)
    pauses, results = random.Random(seed), []
    for prompt, length in zip(workload.prompts, workload.output_lengths, strict=True):
        await asyncio.sleep(pauses.uniform(0, plan.max_pause_s))
        times = await send(prompt, length)
        if times.error is not None:
            raise RayinferError(f"an interactive request failed: {times.error}")
        results.append(times)
    return results


class _BatchClient:
    """Client of files and batches."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @asynccontextmanager
    async def running(self, plan: BatchEffectPlan, number: int) -> AsyncIterator[Any]:
        """Begin a batch and wait until it fills the engine; yields its rate so far, and cancels it at the end."""
        files = {"file": ("rows.jsonl", _rows(plan, number))}
        file = await self._call("POST", "/v1/files", files=files, data={"purpose": "batch"})
        body = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        batch_id = (await self._call("POST", "/v1/batches", json=body))["id"]
        try:
            await self._until(batch_id, START_TIMEOUT_S, lambda batch: batch["request_counts"]["completed"] > 0)
            await asyncio.sleep(plan.settling_s)
            clock = asyncio.get_running_loop().time
            begin, begin_s = await self._num_done(batch_id), clock()

            async def rate() -> float:
                return (await self._num_done(batch_id) - begin) / (clock() - begin_s)

            yield rate
            if (await self._batch(batch_id))["status"] != "in_progress":
                raise RayinferError(f"the batch ended before the measurement: give it more than {plan.num_rows} rows")
        finally:
            await self._call("POST", f"/v1/batches/{batch_id}/cancel")
            await self._until(batch_id, END_TIMEOUT_S, lambda batch: batch["status"] in ("cancelled", "completed"))

    async def _until(self, batch_id: str, timeout_s: float, is_reached: Callable[[dict[str, Any]], bool]) -> None:
        async with asyncio.timeout(timeout_s):
            while not is_reached(batch := await self._batch(batch_id)):
                if batch["status"] in ("failed", "expired"):
                    raise RayinferError(f"the batch is {batch['status']}: {batch['errors']}")
                await asyncio.sleep(POLL_S)

    async def _num_done(self, batch_id: str) -> int:
        return int((await self._batch(batch_id))["request_counts"]["completed"])

    async def _batch(self, batch_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/v1/batches/{batch_id}")

    async def _call(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        response = await self._http.request(method, path, **content)
        if response.is_error:
            raise RayinferError(f"{method} {path}: HTTP {response.status_code}: {response.text[:200]}")
        found: dict[str, Any] = response.json()
        return found


@asynccontextmanager
async def _batch_client(plan: BatchEffectPlan) -> AsyncIterator[_BatchClient]:
    url = plan.base_url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        yield _BatchClient(http)


def _rows(plan: BatchEffectPlan, number: int) -> bytes:
    workload = serving_workload(
        plan.num_rows, plan.row_input_len, plan.row_output_len, plan.vocab_size, plan.seed + 1000 + number
    )
    settings = {"model": plan.model, "temperature": 0, "ignore_eos": True}
    rows = (
        {
            "custom_id": str(index),
            "method": "POST",
            "url": ENDPOINT,
            "body": {**settings, "prompt": prompt, "max_tokens": length},
        }
        for index, (prompt, length) in enumerate(zip(workload.prompts, workload.output_lengths, strict=True))
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _flat(rounds: list[list[RequestTimes]]) -> list[RequestTimes]:
    return [times for each in rounds for times in each]


def _first_tokens(results: list[RequestTimes]) -> Percentiles:
    found = percentiles([times.first_token_s for times in results if times.first_token_s is not None])
    assert found is not None, "every request has a first token"
    return found


def _steps(results: list[RequestTimes]) -> Percentiles:
    found = percentiles([gap for times in results for gap in times.inter_token_s])
    if found is None:
        raise RayinferError("interactive requests need two output tokens at least, to measure steps")
    return found
