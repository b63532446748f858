"""Results of a comparison, saved run by run, so that a long one can be run in parts and resumed."""

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rayinfer.benchmark.peers.cases import BATCH_REQUESTS, FIGURES, LESS_IS_BETTER, Figures
from rayinfer.benchmark.peers.systems import OWN, SPECULATION, SystemUnderTest


@dataclass(kw_only=True, slots=True)
class Outcome:
    """Results of one system on one case: every run of every figure."""

    weight_bits: int
    version: str = ""
    runs: dict[str, list[float]] = field(default_factory=dict)
    failure: str | None = None  # why there are no more runs
    concession: str | None = None  # why `allow_inaccurate_quantization` was set
    instructions: str = ""  # of its matrix products, as it reports them

    @property
    def num_runs(self) -> int:
        """Return the number of runs that have succeeded."""
        return max(map(len, self.runs.values()), default=0)

    def median(self, figure: str) -> float | None:
        """Return the median of a figure's runs; None without a run."""
        return statistics.median(self.runs[figure]) if self.runs.get(figure) else None


@dataclass(kw_only=True, slots=True)
class CaseResults:
    """Results of one case, and their conditions."""

    case: str
    date: str
    command: str
    environment: dict[str, Any]
    cpu_flags: list[str]
    rounds: int
    model: str = ""
    processor: str = ""  # kind of processor; empty in older files
    num_requests: int = BATCH_REQUESTS
    configuration: str = ""  # digest of all that runs must have in common
    kernels: str = "native"  # kernel path that every system was kept to; native: no limit
    memory_read_gb_s: list[float] = field(default_factory=list)  # measured before each round
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by the system's label
    missing: dict[str, str] = field(default_factory=dict)  # reasons, by label

    def outcome_of(self, system: SystemUnderTest) -> Outcome:
        """Return the system's outcome, adding one where there is none yet."""
        new = Outcome(weight_bits=system.weight_bits, version=system.version, concession=system.concession)
        return self.outcomes.setdefault(system.label, new)

    def needs(self, system: SystemUnderTest, number: int) -> bool:
        """Return whether the system has neither failed nor run in a round, counted from 0."""
        outcome = self.outcome_of(system)
        return outcome.failure is None and outcome.num_runs <= number

    def resume(self, new: "CaseResults") -> None:
        """Go on towards the rounds of `new`; systems that failed are tried again."""
        self.rounds, self.missing = max(self.rounds, new.rounds), new.missing
        for outcome in self.outcomes.values():
            outcome.failure = None

    def missing_runs(self) -> list[str]:
        """Say which systems have fewer runs than rounds, without having failed."""
        return [
            f"{self.case}: {label} has {outcome.num_runs} of {self.rounds} runs"
            for label, outcome in self.outcomes.items()
            if outcome.failure is None and outcome.num_runs < self.rounds
        ]

    def add(self, system: SystemUnderTest, figures: Figures) -> None:
        """Record one run."""
        runs = self.outcome_of(system).runs
        for figure, value in figures.items():
            runs.setdefault(figure, []).append(round(value, 3))


def read_results(path: Path) -> dict[str, CaseResults]:
    """Read the results of earlier runs; nothing where there is no file."""
    if not path.exists():
        return {}
    results = {}
    for case, found in json.loads(path.read_text()).items():
        found.pop("work", None)  # the case's name in older files
        outcomes = {label: Outcome(**outcome) for label, outcome in found.pop("outcomes").items()}
        results[case] = CaseResults(**{**found, "case": case, "outcomes": outcomes})
    return results


def write_results(results: Mapping[str, CaseResults], path: Path) -> None:
    """Write all results atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({case: asdict(result) for case, result in results.items()}, indent=2) + "\n")
    unfinished.replace(path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Median:
    """Median of one system at one figure."""

    label: str
    weight_bits: int
    value: float

    @property
    def is_own(self) -> bool:
        """Return whether it is one of our modes."""
        return self.label.startswith(f"{OWN} ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One of our modes relative to one peer, or to itself without speculation, at one figure."""

    figure: str
    own_label: str
    peer_label: str
    better_by: float  # above 1 where ours is better, for times too


def medians_of(results: Mapping[str, CaseResults], figure: str) -> list[Median]:
    """Return the medians of all systems at a figure."""
    return [
        Median(label=label, weight_bits=outcome.weight_bits, value=value)
        for result in results.values()
        for label, outcome in result.outcomes.items()
        if (value := outcome.median(figure)) is not None
    ]


def ratios_of(results: Mapping[str, CaseResults]) -> list[Ratio]:
    """Compare every mode of ours, figure by figure, with every peer whose weights have the same width.

    Modes with speculation are left out, as the peers draft nothing.
    """

    def is_rival(own: Median, peer: Median) -> bool:
        drafts = own.label.endswith(SPECULATION)
        return not drafts and not peer.is_own and peer.weight_bits == own.weight_bits

    return _ratios(results, is_rival)


def speculation_ratios_of(results: Mapping[str, CaseResults]) -> list[Ratio]:
    """Compare every mode of ours with speculation, figure by figure, with the same mode without it."""
    return _ratios(results, lambda own, base: own.label == f"{base.label}{SPECULATION}")


def _ratios(results: Mapping[str, CaseResults], is_rival: Callable[[Median, Median], bool]) -> list[Ratio]:
    ratios = []
    for figure in FIGURES:
        medians = medians_of(results, figure)
        for own in filter(lambda median: median.is_own, medians):
            for peer in filter(partial(is_rival, own), medians):
                ratio = peer.value / own.value if figure in LESS_IS_BETTER else own.value / peer.value
                ratios.append(Ratio(figure=figure, own_label=own.label, peer_label=peer.label, better_by=ratio))
    return ratios
