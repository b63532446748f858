"""Round-robin order of a comparison; a contender that fails is left out, and the others continue."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rayinfer.benchmark.peers.cases import HTTP, START
from rayinfer.benchmark.peers.results import Section
from rayinfer.benchmark.peers.server_process import measure_server, running_server
from rayinfer.benchmark.peers.system_under_test import Contender, Figures, MeasuredEngine
from rayinfer.errors import RayinferError

SETTLE_S = 0.5  # an engine may have work left when its last answer is out, which must not wait until its next turn
Tell = Callable[[str], None]
ReadMemory = Callable[[], float]


def take_turns(
    contenders: Sequence[Contender],
    section: Section,
    measure: Callable[[Contender], Figures],
    *,
    read_memory: ReadMemory,
    tell: Tell,
) -> None:
    """Measure every contender `section.rounds` times, A B C A B C; a failure ends only its own contender's runs."""
    for number in range(section.rounds):
        section.memory_read_gb_s.append(round(read_memory(), 1))
        for contender in contenders:
            outcome = section.outcome_of(contender)
            if outcome.failure is not None:
                continue
            tell(f"{section.work}, round {number + 1} of {section.rounds}: {contender.label}")
            try:
                section.add(contender, measure(contender))
            except RayinferError as error:
                outcome.failure = str(error)
                tell(f"{contender.label} failed: {error}")


class EngineHall:
    """Pool of the contenders' engines, opened once for all workloads and paused except while measured."""

    def __init__(self, logs: Path, tell: Tell) -> None:
        self._logs = logs
        self._tell = tell
        self._engines: dict[str, MeasuredEngine] = {}
        self._failures: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "EngineHall":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, contenders: Sequence[Contender]) -> None:
        """Start every engine, one after the other; the failure of one is kept until it is asked for."""
        for contender in contenders:
            if contender.open_engine is None:
                continue
            self._tell(f"starting {contender.label}")
            log = self._logs / f"{contender.label.replace(' ', '-')}-engine.log"
            try:
                engine = self._stack.enter_context(contender.open_engine(log))
            except RayinferError as error:
                self._failures[contender.label] = str(error)
                self._tell(f"{contender.label} did not start: {error}")
            else:
                _rest(engine)
                self._engines[contender.label] = engine

    def those_for(self, work: str, contenders: Sequence[Contender], section: Section) -> list[Contender]:
        """Return the contenders that support the work; those that did not start are recorded as failed."""
        able = []
        for contender in contenders:
            if failure := self._failures.get(contender.label):
                section.outcome_of(contender).failure = failure
            elif (engine := self._engines.get(contender.label)) and work in engine.works:
                section.outcome_of(contender).version = engine.version
                able.append(contender)
        return able

    def measure(self, work: str, contender: Contender) -> Figures:
        """Measure one engine on the work while the others are paused."""
        engine = self._engines[contender.label]
        engine.resume()
        try:
            return engine.measure(work)
        finally:
            _rest(engine)


def _rest(engine: MeasuredEngine) -> None:
    time.sleep(SETTLE_S)
    engine.pause()


def measure_servers(
    contenders: Sequence[Contender],
    sections: dict[str, Section],
    *,
    logs: Path,
    vocab_size: int,
    read_memory: ReadMemory,
    tell: Tell,
) -> None:
    """Start each server in turn, which is a figure of its own, and load it; `sections` holds HTTP, START or both."""
    able = [contender for contender in contenders if contender.server is not None]
    leading = sections.get(HTTP) or sections[START]

    def measure(contender: Contender) -> Figures:
        assert contender.server is not None
        with running_server(contender.server, logs / f"{contender.label.replace(' ', '-')}-server.log") as server:
            if START in sections:
                sections[START].add(contender, {"ready": server.ready_s})
            return measure_server(server, contender.server.model, vocab_size) if HTTP in sections else {}

    for section in sections.values():
        for contender in able:
            assert contender.server is not None
            section.outcome_of(contender).version = contender.server.version
    take_turns(able, leading, measure, read_memory=read_memory, tell=tell)
    for section in sections.values():
        section.memory_read_gb_s = list(leading.memory_read_gb_s)
