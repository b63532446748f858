"""Results of the rows of the comparison, saved after each, so that a long one can be run in parts."""

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Figures = dict[str, float]  # by name


@dataclass(kw_only=True, slots=True)
class RowResult:
    """All runs of one row, and their conditions."""

    row: str
    date: str
    command: str
    environment: dict[str, Any]
    cpu_flags: list[str]
    num_threads: int
    rounds: int
    load_average: list[float] = field(default_factory=list)  # of the machine, before each round
    runs: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by system and figure
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # reasons, by system

    def add(self, system: str, figures: Figures) -> None:
        """Record one run."""
        runs = self.runs.setdefault(system, {})
        for name, value in figures.items():
            runs.setdefault(name, []).append(round(value, 4))

    def median(self, system: str, figure: str) -> float | None:
        """Return the median of a system's runs; None without a run."""
        runs = self.runs.get(system, {}).get(figure)
        return statistics.median(runs) if runs else None

    def best(self, figure: str, *systems: str) -> float | None:
        """Return the largest median among some systems; None where none was measured."""
        found = [value for system in systems if (value := self.median(system, figure)) is not None]
        return max(found) if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """A goal of a row: a value made of its medians, and its limit."""

    name: str  # of the list of goals, P1 to P12
    text: str
    value: Callable[[RowResult], float | None]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def limit(self) -> str:
        """Return the limit in words."""
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"

    def is_met(self, result: RowResult) -> bool | None:
        """Whether the goal is met; None where it was not measured."""
        value = self.value(result)
        if value is None:
            return None
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None, "a goal has one limit"
        return value <= self.at_most


def read_rows(path: Path) -> dict[str, RowResult]:
    """Read the rows of earlier runs; nothing where there is no file."""
    if not path.exists():
        return {}
    return {name: RowResult(**found) for name, found in json.loads(path.read_text()).items()}


def write_rows(results: Mapping[str, RowResult], path: Path) -> None:
    """Write all rows atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({name: asdict(each) for name, each in results.items()}, indent=2) + "\n")
    unfinished.replace(path)
