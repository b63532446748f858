"""Measurements, with roofline times and goals."""

from dataclasses import dataclass, field
from typing import Any

from rayinfer.benchmark.gpu.cases import WORKS, Work
from rayinfer.benchmark.gpu.decode_kernel import DecodeRow
from rayinfer.benchmark.gpu.skinny_gemm import ProductRow
from rayinfer.benchmark.load.report import Environment, describe_environment


@dataclass(kw_only=True, slots=True)
class Row:
    """One workload's figures; `share` is the part of the floor that was reached."""

    name: str
    model: str
    about: str
    seconds: list[float] = field(default_factory=list)  # each run's, of what the floor is of: all of it, or one token
    floor_s: float | None = None
    share: float | None = None
    rate: str = ""  # in the words of the workload
    idle_us: float | None = None  # of the GPU between two decoding steps
    goal: str = ""
    is_done: bool | None = None  # whether the first goal was reached; None where there is none
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """The decode kernel on one shape, with keys and values of one type."""

    kv_dtype: str
    shape: DecodeRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Something that had to hold before figures mean anything."""

    name: str
    is_right: bool
    detail: str

    def __str__(self) -> str:
        return f"{'right' if self.is_right else 'WRONG'}: {self.name}: {self.detail}"


@dataclass(kw_only=True, slots=True)
class GpuReport:
    """The whole result."""

    card: str
    is_dry_run: bool
    copy_bytes_per_s: float
    matmul_flops_per_s: float
    limit_s: float  # for everything
    took_s: float = 0.0
    shortened: list[str] = field(default_factory=list)  # what was left out or run less often, for want of time
    rows: list[Row] = field(default_factory=list)
    kernels: list[KernelRow] = field(default_factory=list)
    products: list[ProductRow] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    environment: Environment = field(default_factory=describe_environment)


def new_row(work: Work) -> Row:
    """Return a row without figures."""
    return Row(name=work.name, model=work.model, about=work.about, goal=_goal(work))


def judge(row: Row, rows: list[Row]) -> None:
    """Record whether the first goal was reached."""
    work = next(work for work in WORKS if work.name == row.name)
    if work.done is None or row.error:
        return
    if work.goal_unit == "ms for a token":
        row.is_done = 1e3 * min(row.seconds) <= work.done
    elif work.goal_unit == "times B1":
        first = next((each for each in rows if each.name == "B1" and each.seconds), None)
        row.is_done = None if first is None else min(first.seconds) / min(row.seconds) >= work.done
    else:
        row.is_done = row.share is not None and row.share >= work.done


def _goal(work: Work) -> str:
    if work.done is None:
        return ""
    if work.goal_unit == "of the floor":
        wanted = [f"{share:.0%}" for share in (work.done, work.aim) if share is not None]
    else:
        wanted = [f"{number:g}" for number in (work.done, work.aim) if number is not None]
    return f"{', then '.join(wanted)} {work.goal_unit}"
