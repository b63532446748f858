"""Effect of hostile requests on another client's stream: its gaps between tokens, without them and with them."""

import asyncio
import itertools
import multiprocessing
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import median
from urllib.parse import urlsplit

import httpx

from rayinfer.benchmark.control_plane.overhead.hostile_requests import HostileRequest, hostile_kinds, hostile_requests
from rayinfer.benchmark.report import Environment, Percentiles, Table, describe_environment, percentiles
from rayinfer.errors import RayinferError

QUIET, ALL = "quiet", "all kinds"
HEADS = ("sent meanwhile", "gaps", "p50 ms", "p99 ms", "max ms", "p99 moved by ms", "by %", "replies")
NUM_CONNECTIONS = 6
SETTLING_S = 0.5  # from a change of the load to the first gap that counts
REPLY_TIMEOUT_S = 60.0
LEAVE_AFTER_S = 0.1
START_TIMEOUT_S = 60.0
TURNED_AWAY = {"401", "403"}  # without a key, or by the name of the host
NICENESS = 10  # of the hostile clients: the service is loaded, not the machine

Log = Callable[[str], None]


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
    moved_percent: float  # of the same of the p99 over it
    answers: dict[str, int]  # replies to the hostile requests, by status


@dataclass(frozen=True, kw_only=True, slots=True)
class HostileReport:
    """Result of `rayinfer bench hostile`."""

    command: str
    num_rounds: int
    phase_s: float
    results: list[KindResult]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the gaps beside each kind."""
        rows = []
        for result in self.results:
            gaps, replies = result.gaps, ", ".join(f"{status}: {number}" for status, number in result.answers.items())
            moved = (result.moved_ms, result.moved_percent)
            rows.append((result.kind, gaps.count, gaps.p50, gaps.p99, gaps.max, *moved, replies))
        return [Table("Gaps between one stream's tokens", HEADS, rows)]


def measure_hostile_load(plan: HostilePlan, command: str, log: Log) -> HostileReport:
    """Stream tokens beside hostile clients, in rounds; raises RayinferError when the stream ends."""
    return asyncio.run(_measure(plan, command, log))


async def _measure(plan: HostilePlan, command: str, log: Log) -> HostileReport:
    kinds = list(plan.kinds or hostile_kinds())
    phases = [QUIET, *kinds, *([ALL] if len(kinds) > 1 else [])]
    gaps: dict[str, list[list[float]]] = {phase: [] for phase in phases}
    answers: dict[str, Counter[str]] = {phase: Counter() for phase in phases}
    with HostileClients(plan.base_url, plan.model, kinds) as clients:
        async with _Stream(plan) as stream:
            for number, phase in itertools.product(range(plan.num_rounds), phases):
                log(f"round {number + 1} of {plan.num_rounds}: {phase}")
                clients.send({QUIET: [], ALL: kinds}.get(phase, [phase]))
                await asyncio.sleep(SETTLING_S)
                gaps[phase].append(await stream.gaps_of(plan.phase_s))
                answers[phase] += await asyncio.to_thread(clients.stop)
                _check_were_served(phase, answers[phase])
    return HostileReport(
        command=command,
        num_rounds=plan.num_rounds,
        phase_s=plan.phase_s,
        results=[_result(phase, gaps, answers[phase]) for phase in phases],
    )


def _check_were_served(phase: str, answers: Counter[str]) -> None:
    """Raise RayinferError where all requests were refused before they were read, which costs a service nothing."""
    if answers and set(answers) <= TURNED_AWAY:
        raise RayinferError(f"{phase}: the service answered {', '.join(sorted(answers))} to all requests")


def _result(phase: str, gaps: dict[str, list[list[float]]], answers: Counter[str]) -> KindResult:
    pooled = percentiles([gap for each in gaps[phase] for gap in each])
    assert pooled is not None
    pairs = [(_p99(loaded), _p99(quiet)) for loaded, quiet in zip(gaps[phase], gaps[QUIET], strict=True)]
    return KindResult(
        kind=phase,
        gaps=pooled,
        moved_ms=round(median(loaded - quiet for loaded, quiet in pairs), 2),
        moved_percent=round(100 * median(loaded / quiet - 1.0 for loaded, quiet in pairs), 1),
        answers=dict(answers.most_common()),
    )


def _p99(gaps_s: Sequence[float]) -> float:
    spread = percentiles(gaps_s)
    assert spread is not None
    return spread.p99


class _Stream:
    """The measured client: one stream, with the arrival times of its chunks."""

    def __init__(self, plan: HostilePlan) -> None:
        self._plan = plan
        self._arrivals_s: list[float] = []
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "_Stream":
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(START_TIMEOUT_S):
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
            reason = "it had all its tokens" if error is None else str(error) or type(error).__name__
            raise RayinferError(f"the measured stream has ended: {reason}") from error

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
        self._pipe, remote = context.Pipe()
        self._process = context.Process(target=_run_clients, args=(remote, base_url, model, kinds), daemon=True)
        self._process.start()
        remote.close()

    def __enter__(self) -> "HostileClients":
        self._receive()  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def send(self, kinds: Sequence[str]) -> None:
        """Start to send requests of these kinds."""
        self._pipe.send(list(kinds))

    def stop(self) -> Counter[str]:
        """Stop sending; returns the count of each reply's status."""
        self._pipe.send(None)
        return self._receive()

    def _receive(self) -> Counter[str]:
        try:
            if self._pipe.poll(START_TIMEOUT_S):
                answers: Counter[str] = self._pipe.recv()
                return answers
        except EOFError:
            pass
        raise RayinferError("the process of the hostile clients has failed")


def _run_clients(pipe: Connection, base_url: str, model: str, kinds: Sequence[str]) -> None:
    os.nice(NICENESS)
    pools = {kind: deque(_shuffled(requests)) for kind, requests in hostile_requests(model, kinds).items()}
    pipe.send(Counter())
    while True:
        wanted = pipe.recv()
        answers: Counter[str] = Counter()
        # A kind goes on where it was, so that what is to be different is not sent again before all of it was.
        several = deque(_shuffled([request for kind in wanted for request in pools[kind]]))
        asyncio.run(_attack(base_url, pools[wanted[0]] if len(wanted) == 1 else several, pipe, answers))
        pipe.recv()
        pipe.send(answers)


def _shuffled(requests: Sequence[HostileRequest]) -> list[HostileRequest]:
    return random.Random(0).sample(requests, len(requests))


async def _attack(base_url: str, requests: deque[HostileRequest], pipe: Connection, answers: Counter[str]) -> None:
    """Send the requests in turn from several connections, until the pipe has something to read."""
    address = urlsplit(base_url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    is_over = False

    async def send_all() -> None:
        while not is_over:
            request = requests[0]
            requests.rotate(-1)
            answers[await _send(host, port, request)] += 1
            await asyncio.sleep(0.0 if request.per_s is None else 1 / request.per_s)

    tasks = [asyncio.create_task(send_all()) for _ in range(NUM_CONNECTIONS if requests else 0)]
    while not pipe.poll():
        await asyncio.sleep(0.02)
        for task in tasks:
            if task.done():
                task.result()
    is_over = True  # requests in flight end first: they are no part of the next phase
    await asyncio.gather(*tasks)


async def _send(host: str, port: int, request: HostileRequest) -> str:
    """Send one request; returns the reply's status, or how it ended."""
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
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
