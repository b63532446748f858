"""The comparison: systems under test in interleaved rounds, and a report after every case."""

import datetime
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rayinfer.benchmark.peers.cases import CASES, ENGINE_CASES, HTTP, START, Figures
from rayinfer.benchmark.peers.comparison_report import ComparisonReport
from rayinfer.benchmark.peers.machine import KERNEL_FLAGS, memory_read_gb_s
from rayinfer.benchmark.peers.processes import MeasuredEngine, measure_server, open_engine, running_server
from rayinfer.benchmark.peers.results import CaseResults
from rayinfer.benchmark.peers.systems import Setup, SystemUnderTest
from rayinfer.benchmark.report import describe_environment
from rayinfer.errors import ConfigError, RayinferError

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Cases, rounds and output folder of a comparison."""

    cases: tuple[str, ...]
    rounds: int
    command: str  # for the report
    results_folder: Path

    def __post_init__(self) -> None:
        unknown = [case for case in self.cases if case not in CASES]
        if unknown or not self.cases:
            raise ConfigError(f"work must be some of {','.join(CASES)}, got {','.join(unknown) or 'none'}")
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")


def run_comparison(
    systems: Sequence[SystemUnderTest],
    setup: Setup,
    plan: Plan,
    log: Log,
    read_memory: Callable[[int], float] = memory_read_gb_s,
) -> ComparisonReport:
    """Measure all systems on every case of the plan, and write the report after each."""
    missing = {system.label: system.missing for system in systems if system.missing is not None}
    for label, reason in missing.items():
        log(f"{label} is not measured: {reason}")
    results = {
        case: CaseResults(
            case=case,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=plan.command,
            environment=asdict(describe_environment()),
            cpu_flags=[flag for flag in KERNEL_FLAGS if flag in setup.cpu_flags],
            rounds=plan.rounds,
            kernels=setup.kernels,
            missing=missing,
        )
        for case in CASES
        if case in plan.cases
    }
    suffix = "" if setup.kernels == "native" else f"-{setup.kernels}"
    report = ComparisonReport(Path(setup.model).name + suffix, plan.results_folder)
    rounds = _Rounds(Path(tempfile.mkdtemp(prefix="rayinfer-peers-")), setup, read_memory, log)
    found = [system for system in systems if system.missing is None]
    if engine_cases := {case: result for case, result in results.items() if case in ENGINE_CASES}:
        rounds.measure_engines(found, engine_cases, report)
    if server_cases := {case: result for case, result in results.items() if case not in ENGINE_CASES}:
        rounds.measure_servers(found, server_cases)
        report.put(*server_cases.values())
    return report


class _Rounds:
    """Measurement of systems in interleaved rounds; their output goes to `logs`."""

    def __init__(self, logs: Path, setup: Setup, read_memory: Callable[[int], float], log: Log) -> None:
        self._logs, self._setup, self._read_memory, self._log = logs, setup, read_memory, log
        log(f"output of all systems goes to {logs}")

    def measure_engines(
        self, systems: Sequence[SystemUnderTest], results: Mapping[str, CaseResults], report: ComparisonReport
    ) -> None:
        """Open all engines, then measure case by case; each is paused while others are measured."""
        engines: dict[str, MeasuredEngine] = {}
        failures: dict[str, str] = {}
        with ExitStack() as stack:
            for system in systems:
                if not system.engine_command:
                    continue
                self._log(f"starting {system.label}")
                opening = open_engine(system, self._log_file(system, "engine"), self._setup.vocab_size)
                try:
                    engines[system.label] = stack.enter_context(opening)
                except RayinferError as error:
                    failures[system.label] = str(error)
                    self._log(f"{system.label} did not start: {error}")
            for case, result in results.items():
                able = [each for each in systems if each.engine_command and case in each.engine_cases]
                for system in able:
                    result.outcome_of(system).failure = failures.get(system.label)
                interleave(
                    able,
                    result,
                    lambda system, case=case: engines[system.label].measure(case),  # type: ignore[misc]
                    read_memory=self._read,
                    log=self._log,
                )
                report.put(result)

    def measure_servers(self, systems: Sequence[SystemUnderTest], results: Mapping[str, CaseResults]) -> None:
        """Start each server in every round, which is a figure of its own, and load it."""
        able = [system for system in systems if system.server_command]

        def measure(system: SystemUnderTest) -> Figures:
            with running_server(system, self._log_file(system, "server")) as server:
                if START in results:
                    results[START].add(system, {"ready": server.ready_s})
                return measure_server(server, system.name, self._setup.vocab_size) if HTTP in results else {}

        for result in results.values():
            for system in able:
                result.outcome_of(system)
        leading = results.get(HTTP) or results[START]
        interleave(able, leading, measure, read_memory=self._read, log=self._log)
        for result in results.values():
            result.memory_read_gb_s = list(leading.memory_read_gb_s)

    def _read(self) -> float:
        return self._read_memory(len(self._setup.cpus))

    def _log_file(self, system: SystemUnderTest, part: str) -> Path:
        return self._logs / f"{system.label.replace(' ', '-')}-{part}.log"


def interleave(
    systems: Sequence[SystemUnderTest],
    result: CaseResults,
    measure: Callable[[SystemUnderTest], Figures],
    *,
    read_memory: Callable[[], float],
    log: Log,
) -> None:
    """Measure every system `result.rounds` times, A B C A B C; a failure ends only the runs of its own system."""
    for number in range(result.rounds):
        result.memory_read_gb_s.append(round(read_memory(), 1))
        for system in systems:
            outcome = result.outcome_of(system)
            if outcome.failure is not None:
                continue
            log(f"{result.case}, round {number + 1} of {result.rounds}: {system.label}")
            try:
                result.add(system, measure(system))
            except RayinferError as error:
                outcome.failure = str(error)
                log(f"{system.label} failed: {error}")
