"""Effect of hostile requests on another client's stream: its gaps between tokens, without them and with them."""

import asyncio
import itertools
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import httpx

from rayinfer.benchmark.control_plane.overhead.hostile_requests import HostileRequest, hostile_kinds, hostile_requests
from rayinfer.benchmark.load.report import Environment, Percentiles, describe_environment, percentiles
from rayinfer.errors import RayinferError

QUIET, ALL = "quiet", "all kinds"
NUM_CONNECTIONS = 6
SETTLING_S = 0.5  # from a change of the load to the first gap that counts
ANSWER_WITHIN_S = 60.0
LEAVE_AFTER_S = 0.1
START_WITHIN_S = 60.0
NICENESS = 10  # of the hostile clients: it is the service that shall be short of time, not the machine

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostilePlan:
    """Service, its other client and the hostile load."""

    base_url: str
    model: str
    kinds: Sequence[str] = ()  # empty: all of them, each alone and then together
    num_rounds: int = 5
    phase_s: float = 4.0
    max_tokens: int = 100_000  # of the measured stream: more than the measurement takes


@dataclass(frozen=True, kw_only=True, slots=True)
class KindResult:
    """Gaps of the measured stream while one kind of hostile request was sent."""

    kind: str
    gaps: Percentiles  # milliseconds, over all rounds
    moved_ms: float  # the median, over the rounds, of the p99 less that of the same round's quiet phase
    answers: dict[str, int]  # to the hostile requests, by status


@dataclass(frozen=True, kw_only=True, slots=True)
class HostileReport:
    """The whole result."""

    command: str
    num_rounds: int
    phase_s: float
    results: list[KindResult]
    environment: Environment = field(default_factory=describe_environment)


def measure_hostile_load(plan: HostilePlan, command: str, tell: Tell) -> HostileReport:
    """Stream tokens while hostile clients come and go, in rounds; raises RayinferError when the stream ends."""
    return asyncio.run(_measure(plan, command, tell))


async def _measure(plan: HostilePlan, command: str, tell: Tell) -> HostileReport:
    kinds = list(plan.kinds or hostile_kinds())
    phases = [QUIET, *kinds, *([ALL] if len(kinds) > 1 else [])]
    gaps: dict[str, list[list[float]]] = {phase: [] for phase in phases}
    answers: dict[str, Counter[str]] = {phase: Counter() for phase in phases}
    with HostileClients(plan.base_url, plan.model, kinds) as clients:
        async with _Stream(plan) as stream:
            for number, phase in itertools.product(range(plan.num_rounds), phases):
                tell(f"round {number + 1} of {plan.num_rounds}: {phase}")
                clients.send({QUIET: [], ALL: kinds}.get(phase, [phase]))
                await asyncio.sleep(SETTLING_S)
                gaps[phase].append(await stream.gaps_of(plan.phase_s))
                answers[phase] += await asyncio.to_thread(clients.stop)
    return HostileReport(
        command=command,
        num_rounds=plan.num_rounds,
        phase_s=plan.phase_s,
        results=[_result(phase, gaps, answers[phase]) for phase in phases],
    )


def _result(phase: str, gaps: dict[str, list[list[float]]], answers: Counter[str]) -> KindResult:
    pooled = percentiles([gap for each in gaps[phase] for gap in each])
    assert pooled is not None
    moves = [_p99(loaded) - _p99(quiet) for loaded, quiet in zip(gaps[phase], gaps[QUIET], strict=True)]
    return KindResult(
        kind=phase, gaps=pooled, moved_ms=round(sorted(moves)[len(moves) // 2], 2), answers=dict(answers.most_common())
    )


def _p99(gaps_s: Sequence[float]) -> float:
    spread = percentiles(gaps_s)
    assert spread is not None
    return spread.p99


class _Stream:
    """The measured client: one stream, whose chunks are noted as they come."""

    def __init__(self, plan: HostilePlan) -> None:
        self._plan = plan
        self._arrivals_s: list[float] = []
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "_Stream":
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(START_WITHIN_S):
            while not self._arrivals_s:
                await asyncio.sleep(0.05)
                self._check()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def gaps_of(self, seconds: float) -> list[float]:
        """Return the gaps between the chunks of the next seconds."""
        first = len(self._arrivals_s) - 1
        await asyncio.sleep(seconds)
        self._check()
        arrivals = self._arrivals_s[first:]
        if len(arrivals) < 2:
            raise RayinferError(f"the measured stream got no token within {seconds:g} s")
        return [later - earlier for earlier, later in itertools.pairwise(arrivals)]

    def _check(self) -> None:
        assert self._reading is not None
        if self._reading.done():
            error = self._reading.exception()
            raise RayinferError(f"the measured stream has ended: {error or 'it had all its tokens'}") from error

    async def _read(self) -> None:
        while True:  # a context has an end
            await self._read_one()

    async def _read_one(self) -> None:
        body = {"model": self._plan.model, "prompt": [5], "max_tokens": self._plan.max_tokens}
        body |= {"stream": True, "ignore_eos": True, "temperature": 0}
        url = self._plan.base_url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        async with (
            httpx.AsyncClient(timeout=60.0, trust_env=False) as http,
            http.stream("POST", url, json=body) as response,
        ):
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                raise RayinferError(f"HTTP {response.status_code}: {text:.200}")
            async for chunk in response.aiter_raw():
                if b'"error"' in chunk:
                    raise RayinferError(f"an error in the stream: {chunk.decode(errors='replace'):.200}")
                self._arrivals_s.append(time.perf_counter())


class HostileClients:
    """Clients in a process of their own."""

    def __init__(self, base_url: str, model: str, kinds: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_obey, args=(there, base_url, model, kinds), daemon=True)
        self._process.start()
        there.close()

    def __enter__(self) -> "HostileClients":
        self._receive()  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def send(self, kinds: Sequence[str]) -> None:
        """Begin to send requests of these kinds."""
        self._pipe.send(list(kinds))

    def stop(self) -> Counter[str]:
        """Stop sending; returns how often each status was answered."""
        self._pipe.send(None)
        return self._receive()

    def _receive(self) -> Counter[str]:
        try:
            if self._pipe.poll(START_WITHIN_S):
                answers: Counter[str] = self._pipe.recv()
                return answers
        except EOFError:
            pass
        raise RayinferError("the process of the hostile clients has failed")


def _obey(pipe: Connection, base_url: str, model: str, kinds: Sequence[str]) -> None:
    os.nice(NICENESS)
    requests = hostile_requests(model, kinds)
    pipe.send(Counter())
    while True:
        wanted = pipe.recv()
        answers: Counter[str] = Counter()
        asyncio.run(_attack(base_url, [request for kind in wanted for request in requests[kind]], pipe, answers))
        pipe.recv()
        pipe.send(answers)


async def _attack(base_url: str, requests: list[HostileRequest], pipe: Connection, answers: Counter[str]) -> None:
    """Send the requests over and over from several connections, until the pipe has something to read."""
    address = urlsplit(base_url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    is_over = False

    async def go_on(seed: int) -> None:
        order = requests.copy()
        random.Random(seed).shuffle(order)
        for request in itertools.cycle(order):
            if is_over:
                return
            answers[await _send(host, port, request)] += 1
            await asyncio.sleep(0.0 if request.per_s is None else 1 / request.per_s)

    tasks = [asyncio.create_task(go_on(seed)) for seed in range(NUM_CONNECTIONS if requests else 0)]
    while not pipe.poll():
        await asyncio.sleep(0.02)
        for task in tasks:
            if task.done():
                task.result()
    is_over = True  # what is under way is answered first: it is no part of the next phase
    await asyncio.gather(*tasks)


async def _send(host: str, port: int, request: HostileRequest) -> str:
    """Send one request; returns the answer's status, or what became of it."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request.content)
                if not request.is_complete:
                    await asyncio.sleep(LEAVE_AFTER_S)
                    return "left"
                status = (await reader.readline()).split()
                while await reader.read(2**16):
                    pass
                return status[1].decode() if len(status) > 1 else "nothing"
            finally:
                writer.close()
    except OSError:  # timeouts among them
        return "broken"
