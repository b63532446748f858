"""The comparison as Markdown."""

import statistics

from rayinfer.benchmark.gpu.cases import WORKS
from rayinfer.benchmark.gpu.peers.peer_rows import OWN, PeerReport, PeerRow
from rayinfer.benchmark.gpu.report import table

HEADS = ("workload", "model", "", "tokens/s", "time", "of the floor", "rayinfer is faster by")
STREAMS = {work.name for work in WORKS if work.kind == "stream"}


def peer_lines(report: PeerReport) -> list[str]:
    """Return all rows by workload, their settings below, and the versions."""
    measured = sorted((row for row in report.rows if row.workload), key=lambda row: row.workload)
    lines = [
        "# The engine and other implementations on one card",
        "",
        f"{report.card}: copies {report.copy_bytes_per_s / 1e12:.2f} TB/s, read and written together, and multiplies "
        f"{report.matmul_flops_per_s / 1e12:.0f} TFLOP/s in bfloat16.",
        "",
    ]
    if report.is_dry_run:
        lines += ["**A dry run with tiny shapes: nothing here says anything about a GPU.**", ""]
    numbers = {id(row): number for number, row in enumerate((row for row in measured if row.peer != OWN), start=1)}
    lines += table(HEADS, [_cells(row, numbers.get(id(row)), measured) for row in measured])
    lines += ["", "Settings:", ""]
    lines += [
        f"- ({numbers[id(row)]}) {row.peer} {row.version}: {row.settings}" for row in measured if id(row) in numbers
    ]
    lines += [f"- {row.peer} ended early: {row.error}" for row in report.rows if not row.workload]
    versions = ", ".join(f"{name} {version}" for name, version in report.environment.versions.items())
    return [*lines, "", f"It took {report.took_s:.0f} s. {versions}; commit {report.environment.commit}"]


def _cells(row: PeerRow, number: int | None, rows: list[PeerRow]) -> list[str]:
    peer = row.peer if number is None else f"{row.peer} ({number})"
    if row.error or row.tokens_per_s is None or row.share is None:
        return [row.workload, row.model, peer, row.error or "nothing was measured", "", "", ""]
    own = next((each for each in rows if each.peer == OWN and each.workload == row.workload), None)
    has_ratio = row.peer != OWN and own is not None and own.tokens_per_s is not None
    seconds = statistics.median(row.seconds)
    return [
        row.workload,
        row.model,
        peer,
        f"{row.tokens_per_s:,.0f}" + (f" (stopped after {row.tokens:,} tokens)" if row.is_partial else ""),
        f"{1e3 * seconds:.3f} ms a token" if row.workload in STREAMS else f"{seconds:.2f} s",
        f"{row.share:.0%}",
        f"{own.tokens_per_s / row.tokens_per_s:.2f}x" if has_ratio and own and own.tokens_per_s else "",
    ]
