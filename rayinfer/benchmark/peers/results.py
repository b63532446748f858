"""Results of a comparison, saved per workload, so that a long one can be run in parts."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.benchmark.peers.system_under_test import Contender, Figures


@dataclass(kw_only=True, slots=True)
class Outcome:
    """Results of one contender on one workload: every run of every figure."""

    weight_bits: int
    version: str = ""
    runs: dict[str, list[float]] = field(default_factory=dict)
    failure: str | None = None  # why there are no more runs
    concession: str | None = None  # why `allow_inaccurate_quantization` was set for it

    def median(self, figure: str) -> float | None:
        """Return the median of a figure's runs; None without a run."""
        return statistics.median(self.runs[figure]) if self.runs.get(figure) else None


@dataclass(kw_only=True, slots=True)
class Section:
    """One work's results and what they depend on."""

    work: str
    date: str
    command: str
    environment: dict[str, Any]
    cpu_flags: list[str]
    rounds: int
    memory_read_gb_s: list[float] = field(default_factory=list)  # taken before each round
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by the contender's label
    missing: dict[str, str] = field(default_factory=dict)  # label: why

    def outcome_of(self, contender: Contender) -> Outcome:
        """Return the contender's outcome, adding one where there is none yet."""
        made = Outcome(weight_bits=contender.weight_bits, concession=contender.concession)
        return self.outcomes.setdefault(contender.label, made)

    def add(self, contender: Contender, figures: Figures) -> None:
        """Note one run."""
        runs = self.outcome_of(contender).runs
        for figure, value in figures.items():
            runs.setdefault(figure, []).append(round(value, 3))


def read_sections(path: Path) -> dict[str, Section]:
    """Read what an earlier run left; nothing where there is no file."""
    if not path.exists():
        return {}
    sections = json.loads(path.read_text())
    return {work: _section(found) for work, found in sections.items()}


def write_sections(sections: Mapping[str, Section], path: Path) -> None:
    """Write all of them, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({work: asdict(section) for work, section in sections.items()}, indent=2) + "\n")
    unfinished.replace(path)


def _section(found: dict[str, Any]) -> Section:
    outcomes = {label: Outcome(**outcome) for label, outcome in found.pop("outcomes").items()}
    return Section(**found, outcomes=outcomes)
