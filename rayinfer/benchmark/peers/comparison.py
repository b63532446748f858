"""The comparison: systems under test in interleaved rounds, resumed where an earlier run was cut off."""

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rayinfer.benchmark.peers.cases import BATCH_REQUESTS, CASES, ENGINE_CASES
from rayinfer.benchmark.peers.comparison_report import ComparisonReport
from rayinfer.benchmark.peers.machine import KERNEL_FLAGS, memory_read_gb_s
from rayinfer.benchmark.peers.results import CaseResults
from rayinfer.benchmark.peers.resumption import TimeBudget, configuration_digest, source_digest
from rayinfer.benchmark.peers.rounds import Log, Rounds
from rayinfer.benchmark.peers.systems import Setup, SystemUnderTest
from rayinfer.benchmark.report import describe_environment
from rayinfer.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Cases, rounds, sizes and output folder of a comparison."""

    cases: tuple[str, ...]
    rounds: int
    command: str  # for the report
    results_folder: Path
    num_requests: int = BATCH_REQUESTS
    time_budget_s: float | None = None
    is_fresh: bool = False  # everything is measured again, whatever an earlier run has written

    def __post_init__(self) -> None:
        unknown = [case for case in self.cases if case not in CASES]
        if unknown or not self.cases:
            raise ConfigError(f"work must be some of {','.join(CASES)}, got {','.join(unknown) or 'none'}")
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")
        if self.num_requests < 1:
            raise ConfigError(f"requests must be at least 1, got {self.num_requests}")
        if self.time_budget_s is not None and not self.time_budget_s > 0:
            raise ConfigError(f"the time budget must be positive, got {self.time_budget_s} s")


def run_comparison(
    systems: Sequence[SystemUnderTest],
    setup: Setup,
    plan: Plan,
    log: Log,
    read_memory: Callable[[int], float] = memory_read_gb_s,
    clock: Callable[[], float] = time.monotonic,
) -> ComparisonReport:
    """Measure all systems on every case of the plan, as far as the report lacks their runs; each is written at once."""
    budget = TimeBudget(plan.time_budget_s, clock)
    missing = {system.label: system.missing for system in systems if system.missing is not None}
    for label, reason in missing.items():
        log(f"{label} is not measured: {reason}")
    found = [system for system in systems if system.missing is None]
    limit = "" if setup.kernels == "native" else f"-{setup.kernels}"
    report = ComparisonReport(Path(setup.model).name, setup.processor + limit, plan.results_folder)
    sources = source_digest()
    results = [
        _begun_or_new(_new_results(case, found, setup, plan, missing, sources), report, plan, log)
        for case in CASES
        if case in plan.cases
    ]
    rounds = Rounds(setup, report, budget, read_memory, log)
    rounds.measure_engines(found, [result for result in results if result.case in ENGINE_CASES])
    rounds.measure_servers(found, [result for result in results if result.case not in ENGINE_CASES])
    report.put(*results)
    if lacking := [line for result in results for line in result.missing_runs()]:
        log("the time budget is spent; the same command goes on. " + "; ".join(lacking))
    return report


def _new_results(
    case: str,
    found: Sequence[SystemUnderTest],
    setup: Setup,
    plan: Plan,
    missing: Mapping[str, str],
    sources: str,
) -> CaseResults:
    return CaseResults(
        case=case,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=plan.command,
        environment=asdict(describe_environment()),
        cpu_flags=[flag for flag in KERNEL_FLAGS if flag in setup.cpu_flags],
        rounds=plan.rounds,
        model=Path(setup.model).name,
        processor=setup.processor,
        num_requests=plan.num_requests,
        configuration=configuration_digest(case, found, setup, plan.num_requests, sources),
        kernels=setup.kernels,
        missing=dict(missing),
    )


def _begun_or_new(new: CaseResults, report: ComparisonReport, plan: Plan, log: Log) -> CaseResults:
    """Return what an earlier run of the same configuration has measured, to go on with, else the new results."""
    begun = report.results.get(new.case)
    if begun is None or begun.configuration != new.configuration or plan.is_fresh:
        return new
    begun.resume(new)
    log(f"{new.case}: runs of the same configuration in {report.json_file} are kept")
    return begun
