"""Random load in rounds: arrivals in bursts, aborts, pauses and sleep, then a drain."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rayinfer.benchmark.gpu.soak.ledger import Ledger
from rayinfer.benchmark.gpu.soak.memory import MemoryReading, read_memory, settle
from rayinfer.benchmark.gpu.soak.random_requests import REFUSED_SHARE, RandomRequests
from rayinfer.engine.loop.engine import Engine
from rayinfer.errors import RequestError
from rayinfer.protocols import Pause, Resume, Sleep, Wake

NUM_ROUNDS = 5  # each ends with a drain and a reading of the memory; the first one warms up
MAX_ARRIVALS_PER_STEP = 8
ABORT_SHARE = 0.02  # of steps, after which one request is aborted
DRAIN_S = 120.0
PROGRESS_S = 10.0
INTERRUPTIONS = ("pause", "sleep 0", "sleep 1", "sleep 2")


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakReport:
    """Result of a run, which has passed if there are no problems."""

    card: str
    model: str
    settings: dict[str, object]
    seed: int
    seconds: float
    requests: int
    refused: int
    finished: dict[str, int]
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    steps: int
    preemptions: int
    interruptions: dict[str, int]
    memory: list[MemoryReading]  # after each round, of an idle engine
    memory_before: MemoryReading  # there was an engine
    memory_after: MemoryReading  # it was gone
    problems: list[str] = field(default_factory=list)


class RandomLoad:
    """One engine under random load; `interrupt_every_s` is between pauses and sleep."""

    def __init__(
        self,
        engine: Engine,
        say: Callable[[str], None],
        *,
        seed: int = 0,
        interrupt_every_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        description = engine.description
        self._engine = engine
        self._say = say
        self._clock = clock
        self._interrupt_every_s = interrupt_every_s
        self._chance = random.Random(seed)
        self._requests = RandomRequests(description, seed)
        self._targets = [0, 3, description.max_num_seqs // 2, 2 * description.max_num_seqs]
        self._target, self._steps_at_target = 0, 0
        self._started_s = clock()
        self._said_s = clock()
        self.ledger = Ledger(description.vocab_size, description.eos_token_ids)
        self.interruptions: Counter[str] = Counter()
        self.readings: list[MemoryReading] = []

    def run(self, seconds: float) -> None:
        """Load the engine for so long, in rounds, and look after each what it still holds."""
        self._started_s = self._clock()
        for number in range(1, NUM_ROUNDS + 1):
            self._load_until(self._started_s + seconds * number / NUM_ROUNDS)
            self._drain()
            self._check_idle()
            settle(self._engine)
            self.readings.append(read_memory(self._elapsed_s))
            self._say(f"round {number} of {NUM_ROUNDS}: {self.readings[-1]}")
        for leak in self.readings[-1].leaks_against(self.readings[0]):
            self.ledger.report(leak)

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._started_s

    def _load_until(self, end_s: float) -> None:
        interrupt_s = self._clock() + self._interrupt_every_s
        while (now := self._clock()) < end_s:
            self._arrive()
            self._step()
            if self._chance.random() < ABORT_SHARE:
                self._abort_one()
            if now >= interrupt_s:
                self._interrupt()
                interrupt_s = self._clock() + self._interrupt_every_s
            if now >= self._said_s + PROGRESS_S:
                self._say_progress()

    def _arrive(self) -> None:
        """Bring the number of requests towards a target, which changes now and then."""
        if self._steps_at_target == 0:
            self._target = self._chance.choice(self._targets)
            self._steps_at_target = self._chance.randint(20, 200)
        self._steps_at_target -= 1
        missing = self._target - self._engine.num_unfinished_requests
        for _ in range(min(missing, self._chance.randint(0, MAX_ARRIVALS_PER_STEP))):
            self._submit()

    def _submit(self) -> None:
        if self._chance.random() < REFUSED_SHARE:
            self._submit_refused()
            return
        request = self._requests.draw()
        self._engine.add_request(request)
        self.ledger.submit(request)

    def _submit_refused(self) -> None:
        request = self._requests.draw_refused()
        try:
            self._engine.add_request(request)
        except RequestError:
            self.ledger.num_refused += 1
        else:
            self.ledger.submit(request)
            self.ledger.report(f"{request.request_id}: taken, although it could not be served")

    def _step(self) -> None:
        for delta in self._engine.step():
            self.ledger.apply(delta)

    def _abort_one(self) -> None:
        if open_ids := self.ledger.open_ids:
            request_id = self._chance.choice(open_ids)
            self.ledger.abort(request_id, self._engine.abort(request_id))

    def _interrupt(self) -> None:
        """Pause or sleep in the middle of everything; requests come and go meanwhile."""
        kind = INTERRUPTIONS[self.interruptions.total() % len(INTERRUPTIONS)]
        self.interruptions[kind] += 1
        if kind == "pause":
            self._engine.control(Pause())
        else:
            self._engine.control(Sleep(int(kind.rpartition(" ")[2])))
        self._submit()
        self._abort_one()
        for _ in range(3):
            self._step()
        if kind == "pause":
            self._engine.control(Resume())
        else:
            self._engine.control(Wake())

    def _drain(self) -> None:
        end_s = self._clock() + DRAIN_S
        while self._engine.has_unfinished_requests and self._clock() < end_s:
            self._step()

    def _check_idle(self) -> None:
        stats, ledger = self._engine.stats, self.ledger
        held = {
            "requests that run": stats.num_running,
            "requests that wait": stats.num_waiting,
            "blocks": stats.kv_blocks_used,
            "blocks of the second pool": stats.kv_offload_blocks_used,
            "requests without an end": len(ledger.open_ids),
        }
        for name, count in held.items():
            if count:
                ledger.report(f"{count} {name} after everything was drained")
        if stats.requests_finished_total != dict(ledger.finished):
            ledger.report(f"the engine counts {stats.requests_finished_total}, its callers {dict(ledger.finished)}")
        if ledger.num_submitted != ledger.finished.total():
            ledger.report(f"{ledger.num_submitted} requests were taken, {ledger.finished.total()} ended")

    def _say_progress(self) -> None:
        self._said_s = self._clock()
        stats, ledger = self._engine.stats, self.ledger
        self._say(
            f"{self._elapsed_s:.0f} s: {ledger.num_submitted} requests, {ledger.num_output_tokens} tokens, "
            f"{stats.num_steps_total} steps, {stats.num_preemptions_total} preemptions, {stats.num_running} running, "
            f"{stats.num_waiting} waiting, {len(ledger.problems)} problems"
        )
