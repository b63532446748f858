"""Files of the comparison of predictors: all runs as JSON, tables as Markdown, figures as SVG."""

from collections.abc import Mapping
from pathlib import Path

from rayinfer.benchmark.predictors.row_results import RowResult, read_rows, write_rows
from rayinfer.benchmark.predictors.rows import OWN, ROWS
from rayinfer.benchmark.report import Table, format_figure, write_markdown
from rayinfer.benchmark.svg import Drawing

TITLE = "Predictors and their peers"
METHOD = "Medians of rounds in which all systems take turns (A B C A B C), with the same threads and inputs."
OWN_SYSTEMS = (OWN, "HTTP", "model alone")
WIDTH, LABEL_WIDTH, BAR_WIDTH = 640, 220, 330
BAR_HEIGHT, BAR_STEP, TITLE_HEIGHT, TOP, GAP = 13, 19, 30, 46, 18

Results = Mapping[str, RowResult]


class PredictorReport:
    """Files of a comparison; rows that are not measured anew stay as they were."""

    def __init__(self, folder: Path) -> None:
        self.json_file, self.markdown_file, self.svg_file = (
            folder / f"predictors.{suffix}" for suffix in ("json", "md", "svg")
        )
        self.results = read_rows(self.json_file)

    def put(self, result: RowResult) -> None:
        """Add a row and write all files."""
        found = self.results | {result.row: result}
        self.results = {row: found[row] for row in ROWS if row in found}
        write_rows(self.results, self.json_file)
        write_markdown(self.markdown_file, TITLE, tables(self.results), METHOD, *notes(self.results))
        self.svg_file.write_text(svg(self.results))


def tables(results: Results) -> list[Table]:
    """Return the goals, the figures of each row, and the conditions."""
    found = [Table("Goals", ("goal", "row", "", "limit", "measured", "met"), goal_rows(results))]
    for row, result in results.items():
        names = list(dict.fromkeys(name for runs in result.runs.values() for name in runs))
        rows = [(system, *(result.median(system, name) for name in names)) for system in result.runs]
        found.append(Table(f"{row}: {ROWS[row].title}", ("", *names), rows))
    conditions = [
        (
            row,
            result.date,
            f"{result.environment['cpu_model']}, {result.num_threads} threads",
            " ".join(result.cpu_flags),
            result.rounds,
            ", ".join(map(format_figure, result.load_average)),
            (result.environment["commit"] or "unknown")[:12],
        )
        for row, result in results.items()
    ]
    heads = ("row", "date", "processor", "instructions", "rounds", "load average before each", "commit")
    return [*found, Table("Conditions", heads, conditions)]


def goal_rows(results: Results) -> list[tuple[object, ...]]:
    """Return each goal with its limit, what was measured, and whether that meets it."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    return [
        (goal.name, row, goal.text, goal.limit, goal.value(result), words[goal.is_met(result)])
        for row, result in results.items()
        for goal in ROWS[row].goals
    ]


def notes(results: Results) -> list[str]:
    """Return commands, versions, and every system that is missing or failed."""
    lines = [f"`{result.command}`" for result in results.values()]
    for result in results.values():
        lines += [f"{name} {version}" for name, version in result.versions.items()]
    for row, result in results.items():
        lines += [f"{row}: {system} was not measured: {reason}" for system, reason in result.missing.items()]
    return ["\n".join(f"- {line}" for line in dict.fromkeys(lines))] if lines else []


def svg(results: Results) -> str:
    """Draw the leading figure of each row, a bar for each system."""
    drawing, top = Drawing(WIDTH, TITLE), TOP
    drawing.text(0, 16, TITLE, "title")
    for row, result in results.items():
        figure = ROWS[row].figure
        bars = [(name, value) for name in result.runs if (value := result.median(name, figure)) is not None]
        if not bars:
            continue
        drawing.text(0, top, f"{ROWS[row].title}, {ROWS[row].unit}", "title")
        largest = max(value for _, value in bars) or 1.0
        for number, (name, value) in enumerate(bars):
            y = top + 10 + number * BAR_STEP
            length = max(1.0, BAR_WIDTH * value / largest)
            drawing.text(0, y + 11, name)
            drawing.bar(LABEL_WIDTH, y, length, BAR_HEIGHT, "blue" if name in OWN_SYSTEMS else "grey")
            drawing.text(LABEL_WIDTH + length + 5, y + 11, format_figure(float(f"{value:.3g}")))
        top += TITLE_HEIGHT + len(bars) * BAR_STEP + GAP
    return drawing.markup(top)
