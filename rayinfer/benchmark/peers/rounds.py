"""Interleaved rounds: every system once a round, A B C A B C, as far as runs are missing."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rayinfer.benchmark.peers.cases import START, Figures
from rayinfer.benchmark.peers.comparison_report import ComparisonReport
from rayinfer.benchmark.peers.processes import (
    MeasuredEngine,
    RunningServer,
    measure_server,
    open_engine,
    running_server,
)
from rayinfer.benchmark.peers.results import CaseResults
from rayinfer.benchmark.peers.resumption import TimeBudget
from rayinfer.benchmark.peers.systems import Setup, SystemUnderTest
from rayinfer.errors import RayinferError

Log = Callable[[str], None]
Measure = Callable[[SystemUnderTest, Sequence[CaseResults]], None]  # adds a run to each of these results


class Rounds:
    """Measurement of systems until each has its runs or the time budget is spent; every run is written at once."""

    def __init__(
        self,
        setup: Setup,
        report: ComparisonReport,
        budget: TimeBudget,
        read_memory: Callable[[int], float],
        log: Log,
    ) -> None:
        self._setup, self._report, self._budget, self._read_memory, self._log = setup, report, budget, read_memory, log
        self._logs = Path(tempfile.mkdtemp(prefix="rayinfer-peers-"))
        log(f"output of all systems goes to {self._logs}")

    def measure_engines(self, systems: Sequence[SystemUnderTest], results: Sequence[CaseResults]) -> None:
        """Open the engines that lack runs, then measure case by case; each is paused while others are measured."""
        with ExitStack() as stack:
            engines = self._open_engines(systems, results, stack)

            def measure(system: SystemUnderTest, lacking: Sequence[CaseResults]) -> None:
                engine = engines[system.label]
                for result in lacking:
                    result.outcome_of(system).instructions = engine.instructions
                    result.add(system, engine.measure(result.case, result.num_requests))

            for result in results:
                self.interleave([system for system in systems if _can_run(system, result)], [result], measure)

    def measure_servers(self, systems: Sequence[SystemUnderTest], results: Sequence[CaseResults]) -> None:
        """Start each server in every round, which is a figure of its own, and load it."""

        def measure(system: SystemUnderTest, lacking: Sequence[CaseResults]) -> None:
            with running_server(system, self._log_file(system, "server")) as server:
                for result in sorted(lacking, key=lambda result: result.case != START):  # loads may fail
                    result.add(system, self._figures_of(server, system, result))

        self.interleave([system for system in systems if system.server_command], results, measure)

    def _figures_of(self, server: RunningServer, system: SystemUnderTest, result: CaseResults) -> Figures:
        if result.case == START:
            return {"ready": server.ready_s}
        time.sleep(self._setup.server_settle_s)
        return measure_server(server, system.name, self._setup.vocab_size, result.num_requests)

    def interleave(self, systems: Sequence[SystemUnderTest], results: Sequence[CaseResults], measure: Measure) -> None:
        """Measure every system once a round until the results have their rounds; a failure ends only its own system."""
        for result in results:
            for system in systems:
                result.outcome_of(system)
        for number in range(max((result.rounds for result in results), default=0)):
            for system in systems:
                lacking = [each for each in results if number < each.rounds and each.needs(system, number)]
                if not lacking:
                    continue
                if self._budget.is_spent:
                    return
                self._read_memory_before(number, lacking)
                cases = " and ".join(result.case for result in lacking)
                self._log(f"{cases}, round {number + 1} of {lacking[0].rounds}: {system.label}")
                try:
                    measure(system, lacking)
                except RayinferError as error:
                    self._log(f"{system.label} failed: {error}")
                    for result in lacking:
                        if result.needs(system, number):
                            result.outcome_of(system).failure = str(error)
                self._report.put(*results)

    def _open_engines(
        self, systems: Sequence[SystemUnderTest], results: Sequence[CaseResults], stack: ExitStack
    ) -> dict[str, MeasuredEngine]:
        engines: dict[str, MeasuredEngine] = {}
        for system in systems:
            lacking = [each for each in results if _can_run(system, each) and each.needs(system, each.rounds - 1)]
            if not lacking or self._budget.is_spent:
                continue
            self._log(f"starting {system.label}")
            opening = open_engine(system, self._log_file(system, "engine"), self._setup.vocab_size)
            try:
                engines[system.label] = stack.enter_context(opening)
            except RayinferError as error:
                self._log(f"{system.label} did not start: {error}")
                for result in lacking:
                    result.outcome_of(system).failure = str(error)
        return engines

    def _read_memory_before(self, number: int, results: Sequence[CaseResults]) -> None:
        """Measure the memory bandwidth once before each round."""
        lacking = [result for result in results if len(result.memory_read_gb_s) <= number]
        if lacking:
            found = round(self._read_memory(len(self._setup.cpus)), 1)
            for result in lacking:
                result.memory_read_gb_s.append(found)

    def _log_file(self, system: SystemUnderTest, part: str) -> Path:
        return self._logs / f"{system.label.replace(' ', '-')}-{part}.log"


def _can_run(system: SystemUnderTest, result: CaseResults) -> bool:
    return bool(system.engine_command) and result.case in system.engine_cases
