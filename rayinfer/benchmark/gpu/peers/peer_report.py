"""Jobs and rows of the systems under test, and their report."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rayinfer.benchmark.gpu.cases import CASES, FULL, TINY, Case, Scale, nano_workload
from rayinfer.benchmark.gpu.gpu_report import DRY_RUN, describe_limits
from rayinfer.benchmark.gpu.roofline import CardLimits, Roofline
from rayinfer.benchmark.report import Environment, Table, describe_environment, write_json, write_markdown

OWN = "rayinfer"
PEERS = ("nano", "transformers")
PEER_CASES = ("B1", "B3", "B4")
HEADS = ("workload", "model", "", "tokens/s", "time", "of the roofline", "rayinfer is faster by")
STREAMS = {case.name for case in CASES if case.kind == "stream"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerJob:
    """Cases for one system, within `limit_s` seconds."""

    system: str
    case_names: Sequence[str]
    limits: CardLimits
    limit_s: float
    is_tiny: bool

    @property
    def cases(self) -> list[Case]:
        """Return the cases, in the order of the benchmark."""
        return [case for case in CASES if case.name in self.case_names]

    @property
    def scale(self) -> Scale:
        """Return the sizes of the cases."""
        return TINY if self.is_tiny else FULL


@dataclass(kw_only=True, slots=True)
class PeerRow:
    """Figures of one system on one case; a stopped run counts the tokens that it had generated."""

    peer: str
    version: str
    settings: str
    workload: str
    model: str
    seconds: list[float] = field(default_factory=list)  # of each run, or of one token of a stream
    tokens: int = 0  # generated in one run
    tokens_per_s: float | None = None
    share: float | None = None  # of the roofline's rate
    is_partial: bool = False
    error: str = ""

    def compare(self, job: PeerJob) -> None:
        """Compute the rate, and its fraction of the roofline's."""
        case = next((case for case in job.cases if case.name == self.workload), None)
        if case is None or not self.seconds:
            return
        roofline, seconds = Roofline.of(job.scale.shape_of(case), job.limits), statistics.median(self.seconds)
        if case.kind == "stream":
            prompt_len, output_len = job.scale.stream_lengths
            self.tokens = self.tokens or output_len
            self.tokens_per_s = 1 / seconds
            self.share = roofline.decode_step_s([prompt_len + output_len // 2]) / seconds
            return
        workload = nano_workload(job.scale.num_requests, job.scale.longest)
        self.tokens = self.tokens or workload.num_output_tokens
        self.tokens_per_s = self.tokens / seconds
        roofline_s = roofline.offline_s([len(prompt) for prompt in workload.prompts], workload.output_lengths)
        self.share = self.tokens_per_s * roofline_s / workload.num_output_tokens

    def cells(self, label: str, own: "PeerRow | None") -> tuple[object, ...]:
        """Return a row below HEADS; `own` is our engine on the same case."""
        if self.error or self.tokens_per_s is None or self.share is None:
            return self.workload, self.model, label, self.error or "nothing was measured", "", "", ""
        seconds = statistics.median(self.seconds)
        own_rate = None if own is None or self.peer == OWN else own.tokens_per_s
        return (
            self.workload,
            self.model,
            label,
            f"{self.tokens_per_s:,.0f}" + (f" (stopped after {self.tokens:,} tokens)" if self.is_partial else ""),
            f"{1e3 * seconds:.3f} ms a token" if self.workload in STREAMS else f"{seconds:.2f} s",
            f"{self.share:.0%}",
            f"{own_rate / self.tokens_per_s:.2f}x" if own_rate else "",
        )


def failed_row(system: str, reason: str) -> PeerRow:
    """Return the row of a system that ended early."""
    return PeerRow(peer=system, version="", settings="", workload="", model="", error=reason)


@dataclass(kw_only=True, slots=True)
class PeerReport:
    """Result of the comparison."""

    card: str
    is_dry_run: bool
    copy_bytes_per_s: float
    matmul_flops_per_s: float
    command: str
    took_s: float = 0.0
    rows: list[PeerRow] = field(default_factory=list)
    environment: Environment = field(default_factory=describe_environment)

    def table(self) -> Table:
        """Return all rows by case; peers have numbers, by which `notes` lists their settings."""
        rows = []
        for row, label in self._labeled():
            own = next((each for each in self.rows if each.peer == OWN and each.workload == row.workload), None)
            rows.append(row.cells(label, own))
        return Table(describe_limits(self.card, self.copy_bytes_per_s, self.matmul_flops_per_s), HEADS, rows)

    def notes(self) -> list[str]:
        """Return the settings of each peer, failures, time and versions."""
        lines = [f"- {label} {row.version}: {row.settings}" for row, label in self._labeled() if row.peer != OWN]
        lines += [f"- {row.peer} ended early: {row.error}" for row in self.rows if not row.workload]
        notes = [DRY_RUN] if self.is_dry_run else []
        return [*notes, "\n".join(["Settings:", "", *lines]), f"It took {self.took_s:.0f} s. {self.environment}"]

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.json and NAME.md."""
        write_json(self, folder / f"{name}.json")
        title = "The engine and other implementations on one card"
        write_markdown(folder / f"{name}.md", title, [self.table()], *self.notes(), f"`{self.command}`")

    def _labeled(self) -> list[tuple[PeerRow, str]]:
        """Return the measured rows by case, with their labels."""
        measured = sorted((row for row in self.rows if row.workload), key=lambda row: row.workload)
        numbers = {id(row): number for number, row in enumerate((row for row in measured if row.peer != OWN), start=1)}
        return [(row, f"{row.peer} ({numbers[id(row)]})" if id(row) in numbers else row.peer) for row in measured]
