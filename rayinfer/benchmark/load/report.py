"""Summaries of results: percentiles, the machine they were measured on, JSON."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """The spread of one quantity; in reports always milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Versions and machine that a figure depends on besides the code under test."""

    versions: dict[str, str]
    commit: str | None  # None outside a git checkout; ends in "+" when files differ from it
    cpu_model: str
    num_cpus: int  # that this process may use
    platform: str


def percentiles(seconds: Sequence[float]) -> Percentiles | None:
    """Summarise durations in milliseconds, interpolating between neighbours; None when there are none."""
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


def _percentile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
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
            answer = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None or git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # no git here, or the package merely lies inside somebody else's repository
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def write_json(report: Any, path: Path) -> None:
    """Write a report, a dataclass, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(report), indent=2) + "\n")


def format_figure(value: object) -> str:
    """Write a figure as people read it: thousands apart, no more digits than it has meaning."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
