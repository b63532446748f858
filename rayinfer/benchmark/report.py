"""Parts of every report: percentiles, tables, versions and machine, JSON and Markdown."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("rayinfer", "torch", "triton", "transformers", "ray")
PERCENTILE_HEADS = ("ms", "mean", "p50", "p95", "p99", "max", "samples")


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """Spread of one quantity; in reports always milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float
    count: int

    def row(self, name: str) -> tuple[object, ...]:
        """Return a row below PERCENTILE_HEADS."""
        return name, self.mean, self.p50, self.p95, self.p99, self.max, self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Versions and machine that a figure depends on besides the code under test."""

    versions: dict[str, str]
    commit: str | None  # None outside a git checkout; ends in "+" when files differ from it
    cpu_model: str
    num_cpus: int  # that this process may use
    platform: str

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.cpu_model}, {self.num_cpus} CPUs; {versions}; commit {self.commit or 'unknown'}"


@dataclass(frozen=True, slots=True)
class Table:
    """Titled table of figures, for terminals and Markdown files."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]

    def lines(self) -> list[str]:
        """Format the rows as Markdown with aligned columns, without the title."""
        cells = [[format_figure(value) for value in row] for row in self.rows]
        widths = [max(3, *map(len, column)) for column in zip(self.heads, *cells, strict=True)]
        lines = [list(self.heads), ["-" * width for width in widths], *cells]
        return ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """Summarize durations in milliseconds, interpolating between neighbors; None when there are none."""
    if not seconds:
        return None
    ordered = sorted(1e3 * value for value in seconds)
    return Percentiles(
        mean=round(sum(ordered) / len(ordered), 3),
        p50=_percentile(ordered, 0.50),
        p95=_percentile(ordered, 0.95),
        p99=_percentile(ordered, 0.99),
        max=round(ordered[-1], 3),
        count=len(ordered),
    )


def _percentile(ordered: Sequence[float], quantile: float) -> float:
    position = quantile * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (ordered[above] - ordered[below]) * (position - below), 3)


def describe_environment() -> Environment:
    """Look up versions, commit and CPU of this process."""
    return Environment(
        versions={"python": platform.python_version(), **_package_versions(PACKAGES)},
        commit=_commit(Path(__file__).parent),
        cpu_model=_cpu_model(),
        num_cpus=len(os.sched_getaffinity(0)),
        platform=platform.platform(),
    )


def _package_versions(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _commit(folder: Path) -> str | None:
    def git(*arguments: str) -> str | None:
        try:
            process = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None or git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # no git here, or the package merely lies inside another project's repository
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def format_figure(value: object) -> str:
    """Format a figure for people: thousands apart, no more digits than it has meaning, a dash for none."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_markdown(path: Path, title: str, tables: Iterable[Table], *notes: str) -> None:
    """Write tables, and notes below them, as Markdown."""
    lines = [f"# {title}"]
    for table in tables:
        lines += ["", table.title, "", *table.lines()]
    for note in notes:
        lines += ["", note]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_json(report: Any, path: Path) -> None:
    """Write a report, a dataclass, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(report), indent=2) + "\n")
