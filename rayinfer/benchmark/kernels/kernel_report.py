"""Files of a kernel benchmark: all results as JSON, tables as Markdown, and a roofline plot of the linear layers."""

import math
from pathlib import Path

from rayinfer.benchmark.kernels.kernel_benchmark import KernelReport, KernelResult
from rayinfer.benchmark.peers.machine import processor_kind
from rayinfer.benchmark.report import format_figure, write_json, write_markdown
from rayinfer.benchmark.svg import Drawing

METHOD = (
    "Best run of each operation, of one thread its processor time. A linear layer's weights come from memory: each call"
    " takes the next of several copies. The limit is the time of its operations at the measured peak rate, or of its"
    " bytes at the measured bandwidth, whichever is longer; above 100 % caches held what is read."
)
WIDTH, HEIGHT, LEFT, TOP, MARGIN, POINT = 760, 330, 60, 60, 150, 5
COLORS = {"float32": "grey", "bfloat16": "blue", "int8": "green", "int8-dynamic": "brown", "int4": "red"}


def write_kernel_report(report: KernelReport, folder: Path) -> list[Path]:
    """Write all files, named by kind of processor and kernel path, and return their paths."""
    stem = folder / f"kernels-{processor_kind()}-{report.kernels}"
    files = [stem.with_suffix(suffix) for suffix in (".json", ".md", ".svg")]
    write_json(report, files[0])
    title = f"CPU kernels, {report.kernels}"
    figure = f"![Roofline of the linear layers]({files[2].name})"
    write_markdown(files[1], title, report.tables(), figure, METHOD, f"`{report.command}`", str(report.environment))
    files[2].write_text(roofline_svg(report))
    return files


def roofline_svg(report: KernelReport) -> str:
    """Draw every linear layer's rate over its operations per byte, below the roof of its limits."""
    results = [result for result in report.results if result.operation == "linear"]
    rates, limits = [result.gop_s for result in results], report.limits
    lowest = 10 ** math.floor(math.log10(min(rates)))
    highest = max(*rates, *limits.gop_s.values())
    first, last = min(map(_intensity, results)) / 2, max(map(_intensity, results)) * 2

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = math.log(intensity / first) / math.log(last / first)
        y = math.log(rate / lowest) / math.log(highest * 1.3 / lowest)
        return LEFT + x * (WIDTH - LEFT - MARGIN), TOP + (1 - y) * HEIGHT

    drawing = Drawing(WIDTH, f"Roofline of the CPU kernels, {report.kernels}")
    drawing.text(0, 16, f"Linear layers, kernels {report.kernels}, {report.num_threads} threads", "title")
    drawing.text(0, 33, f"Gop/s over operations per byte; {report.environment.cpu_model}", "note")
    for power in range(round(math.log10(lowest)), math.floor(math.log10(highest)) + 1):
        drawing.line([at(first, 10.0**power), at(last, 10.0**power)], "grid")
        drawing.text(0, at(first, 10.0**power)[1] + 4, format_figure(10**power), "note")
    for name, peak in limits.gop_s.items():
        ridge = peak / limits.read_gb_s
        begin = max(first, lowest / limits.read_gb_s)
        roof = [at(begin, begin * limits.read_gb_s), at(ridge, peak), at(last, peak)]
        drawing.line(roof if begin < ridge < last else [at(begin, peak), at(last, peak)], "grey")
        drawing.text(WIDTH - MARGIN + 6, at(last, peak)[1] + 4, f"{name} {format_figure(round(peak))}", "note")
    for result in results:
        x, y = at(_intensity(result), result.gop_s)
        drawing.bar(x - POINT / 2, y - POINT / 2, POINT, POINT, COLORS[result.number])
    for number, (name, color) in enumerate(COLORS.items()):
        drawing.bar(LEFT + 110 * number, TOP + HEIGHT + 14, 10, 10, color)
        drawing.text(LEFT + 110 * number + 15, TOP + HEIGHT + 23, name)
    return drawing.markup(TOP + HEIGHT + 40)


def _intensity(result: KernelResult) -> float:
    return result.gop_s / result.gb_s
