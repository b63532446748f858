"""Jobs that a participant is given, and the rows that it returns."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rayinfer.benchmark.gpu.cases import WORKS, Work
from rayinfer.benchmark.gpu.roofline import CardLimits
from rayinfer.benchmark.gpu.scales import FULL, TINY, Scale
from rayinfer.benchmark.load.report import Environment, describe_environment

OWN = "rayinfer"
PEERS = ("nano", "transformers")
PEER_WORKS = ("B1", "B3", "B4")


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerJob:
    """Workloads for one participant, within `limit_s` seconds."""

    participant: str
    work_names: Sequence[str]
    limits: CardLimits
    limit_s: float
    is_tiny: bool

    @property
    def works(self) -> list[Work]:
        """Return the workloads, in the order of the benchmark."""
        return [work for work in WORKS if work.name in self.work_names]

    @property
    def scale(self) -> Scale:
        """Sizes of the workloads."""
        return TINY if self.is_tiny else FULL

    def write(self, path: Path) -> None:
        """Write the job for another process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "PeerJob":
        """Read a job that was written by `write`."""
        values = json.loads(path.read_text())
        return cls(**{**values, "limits": CardLimits(**values["limits"])})


@dataclass(kw_only=True, slots=True)
class PeerRow:
    """One workload's figures for one participant; a stopped run counts the tokens that it had generated."""

    peer: str
    version: str
    settings: str
    workload: str
    model: str
    seconds: list[float] = field(default_factory=list)  # of each run, or of one token in a workload of one stream
    tokens: int = 0  # generated in one run
    tokens_per_s: float | None = None
    share: float | None = None  # of the rate that the floor allows
    is_partial: bool = False
    error: str = ""


@dataclass(kw_only=True, slots=True)
class PeerReport:
    """The whole comparison."""

    card: str
    is_dry_run: bool
    copy_bytes_per_s: float
    matmul_flops_per_s: float
    took_s: float = 0.0
    rows: list[PeerRow] = field(default_factory=list)
    environment: Environment = field(default_factory=describe_environment)


def write_rows(rows: Sequence[PeerRow], path: Path) -> None:
    """Write the rows of a participant."""
    path.write_text(json.dumps([asdict(row) for row in rows]))


def read_rows(path: Path) -> list[PeerRow]:
    """Read the rows of a participant; none if it ended before its first."""
    return [PeerRow(**values) for values in json.loads(path.read_text())] if path.exists() else []
