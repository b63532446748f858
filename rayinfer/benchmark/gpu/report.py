"""Output of the measurements: tables, JSON, a picture."""

from html import escape
from pathlib import Path

from rayinfer.benchmark.gpu.results import GpuReport, KernelRow, Row
from rayinfer.benchmark.gpu.skinny_gemm import ProductRow
from rayinfer.benchmark.load.report import write_json

HEADS = ("", "model", "measured", "floor", "of the floor", "goal", "reached", "GPU idle between steps")
KERNEL_HEADS = ("queries:keys", "requests", "context", "keys and values", "µs", "GB/s", "of a copy")
PRODUCT_HEADS = ("rows", "outputs", "inputs", "µs", "torch's µs", "of a copy", "torch's")
WIDTH, LEFT, BAR, STEP, TOP = 760, 250, 16, 34, 58
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-weight: 600; } .note { fill: #59636e; font-size: 11px; }
.room { fill: #eaeef2; } .bar { fill: #0969da; } .goal { stroke: #1a7f37; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .note { fill: #9198a1; } .room { fill: #21262d; } .bar { fill: #4493f8; }
  .goal { stroke: #3fb950; }
}
"""


def report_lines(report: GpuReport) -> list[str]:
    """Everything in words and tables, as Markdown that can be read as it is."""
    lines = [_title(report), "", *table(HEADS, [_cells(row) for row in report.rows])]
    if report.is_dry_run:
        lines += ["", "**A dry run with tiny shapes: nothing here says anything about a GPU.**"]
    if report.kernels:
        lines += ["", "Attention of one token a request, alone:", ""]
        lines += table(KERNEL_HEADS, [_kernel_cells(kernel) for kernel in report.kernels])
    if report.products:
        lines += ["", "Products of few rows, alone:", ""]
        lines += table(PRODUCT_HEADS, [_product_cells(product) for product in report.products])
    lines += ["", "Checks in the same run:", "", *([f"- {check}" for check in report.checks] or ["- none"])]
    lines += ["", f"It took {report.took_s:.0f} s of {report.limit_s:.0f} s."]
    if report.shortened:
        lines += [
            "",
            "**Not all of it was measured, for want of time:**",
            "",
            *(f"- {what}" for what in report.shortened),
        ]
    return lines


def write_report(report: GpuReport, folder: Path, name: str, command: str) -> None:
    """Write NAME.json, NAME.md and NAME.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(report, folder / f"{name}.json")
    (folder / f"{name}.svg").write_text(svg(report))
    (folder / f"{name}.md").write_text(_markdown(report, f"{name}.svg", command))


def svg(report: GpuReport) -> str:
    """Draw which part of its floor each workload reached, with the goal as a line."""
    rows = [row for row in report.rows if row.share is not None]
    height, room = TOP + STEP * len(rows) + 8, WIDTH - LEFT - 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        f"<style>{STYLE}</style>",
        f'<text x="0" y="16" class="title">{escape("Speed as a share of what the card allows")}</text>',
        f'<text x="0" y="34" class="note">{escape(_title(report))}</text>',
    ]
    for number, row in enumerate(rows):
        y, share = TOP + number * STEP, row.share or 0.0
        parts += [
            f'<text x="0" y="{y + 12}">{escape(f"{row.name}: {row.model}")}</text>',
            f'<text x="0" y="{y + 26}" class="note">{escape(row.rate[:44])}</text>',
            f'<rect class="room" x="{LEFT}" y="{y}" width="{room}" height="{BAR}"/>',
            f'<rect class="bar" x="{LEFT}" y="{y}" width="{room * min(1.0, share):.1f}" height="{BAR}"/>',
            f'<text x="{LEFT + room + 8}" y="{y + 13}">{share:.0%}</text>',
        ]
        if row.goal.endswith("of the floor"):
            goal = LEFT + room * float(row.goal.partition("%")[0]) / 100
            parts.append(f'<line class="goal" x1="{goal:.1f}" y1="{y - 3}" x2="{goal:.1f}" y2="{y + BAR + 3}"/>')
    return "\n".join([*parts, "</svg>\n"])


def _markdown(report: GpuReport, picture: str, command: str) -> str:
    lines = ["# How close to the card", "", *report_lines(report), "", f"![Shares of the floor]({picture})"]
    versions = ", ".join(f"{name} {version}" for name, version in report.environment.versions.items())
    return "\n".join([*lines, "", f"{versions}; commit {report.environment.commit}: `{command}`", ""])


def table(heads: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Format a Markdown table whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [list(heads), ["-" * width for width in widths], *rows]
    return ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]


def _title(report: GpuReport) -> str:
    return (
        f"{report.card}: copies {report.copy_bytes_per_s / 1e12:.2f} TB/s, read and written together, and multiplies "
        f"{report.matmul_flops_per_s / 1e12:.0f} TFLOP/s in bfloat16."
    )


def _cells(row: Row) -> list[str]:
    reached = {None: "", True: "yes", False: "no"}[row.is_done]
    return [
        row.name,
        row.model,
        row.error or row.rate,
        "" if row.floor_s is None else f"{1e3 * row.floor_s:,.3g} ms",
        "" if row.share is None else f"{row.share:.0%}",
        row.goal,
        reached,
        "" if row.idle_us is None else f"{row.idle_us:.0f} µs",
    ]


def _kernel_cells(kernel: KernelRow) -> list[str]:
    shape = kernel.shape
    figures = f"{1e6 * shape.seconds:.1f}", f"{shape.bytes_per_s / 1e9:,.0f}", f"{shape.share_of_copy:.0%}"
    return [f"{shape.group}:1", str(shape.batch), f"{shape.context:,}", kernel.kv_dtype, *figures]


def _product_cells(product: ProductRow) -> list[str]:
    times = (f"{1e6 * seconds:.1f}" for seconds in (product.seconds, product.torch_seconds))
    shares = (f"{share:.0%}" for share in (product.share_of_copy, product.torch_share_of_copy))
    return [str(product.num_rows), f"{product.outputs:,}", f"{product.inputs:,}", *times, *shares]
