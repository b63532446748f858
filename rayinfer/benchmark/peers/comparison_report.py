"""Files of a comparison: all runs as JSON, tables as Markdown, medians as a figure."""

from collections.abc import Mapping
from pathlib import Path

from rayinfer.benchmark.peers.cases import (
    BATCH,
    CASES,
    ENGINE_CASES,
    FIGURES,
    HTTP,
    LESS_IS_BETTER,
    SERVER_SETTLE_S,
    START,
)
from rayinfer.benchmark.peers.extremes import write_extremes
from rayinfer.benchmark.peers.results import (
    CaseResults,
    Ratio,
    medians_of,
    ratios_of,
    read_results,
    speculation_ratios_of,
    write_results,
)
from rayinfer.benchmark.peers.systems import OWN
from rayinfer.benchmark.report import Table, format_figure, write_markdown
from rayinfer.benchmark.svg import Drawing

METHOD = (
    "Medians of interleaved rounds (A B C A B C), all cores for every system, greedy, the same prompts,"
    " no prefix shared. Higher is better, except for times."
)
CONDITION_HEADS = (
    "case",
    "date",
    "processor",
    "instructions",
    "memory read, GB/s, before each round",
    "rounds",
    "commit",
)
SHOWN = [name for name in FIGURES if not name.startswith(("ttft_p99", "stream_with"))]
COLUMNS = 3
PANEL_WIDTH, LABEL_WIDTH, VALUE_WIDTH, GAP = 330, 132, 52, 26
BAR_HEIGHT, BAR_STEP, TITLE_HEIGHT, TOP = 13, 19, 40, 46

Results = Mapping[str, CaseResults]


class ComparisonReport:
    """Files of one model's comparison on one machine; cases that are not measured anew stay as they were.

    `machine` is the kind of processor, and the kernel path that all systems were kept to.
    """

    def __init__(self, model: str, machine: str, folder: Path) -> None:
        self._model, self._machine, self._folder = model, machine, folder
        self.json_file, self.markdown_file, self.svg_file = (
            folder / f"peers-{model}-{machine}.{suffix}" for suffix in ("json", "md", "svg")
        )
        self.results = read_results(self.json_file)

    def put(self, *results: CaseResults) -> None:
        """Add new results and write all files."""
        found = self.results | {result.case: result for result in results}
        self.results = {case: found[case] for case in CASES if case in found}
        write_results(self.results, self.json_file)
        title = f"{OWN} and its peers: {self._model} on {self._machine}"
        write_markdown(self.markdown_file, title, tables(self.results), METHOD, *notes(self.results))
        self.svg_file.write_text(svg(title, self.results))
        write_extremes(self._model, self._folder)


def tables(results: Results) -> list[Table]:
    """Return figures, ratios and conditions."""
    found = []
    for title, cases in (("The engine alone", ENGINE_CASES), ("Through its server", (HTTP, START))):
        if chosen := {case: results[case] for case in cases if case in results}:
            found.append(_figures(title, chosen))
    for title, ratios in (("Ratios", ratios_of(results)), ("Speculation", speculation_ratios_of(results))):
        if ratios:
            found.append(_ratio_table(title, ratios, results))
    conditions = [
        (
            case,
            result.date,
            f"{result.environment['cpu_model']}, {result.environment['num_cpus']} cores",
            " ".join(result.cpu_flags) if result.kernels == "native" else f"kept to {result.kernels}",
            " ".join(map(format_figure, result.memory_read_gb_s)),
            result.rounds,
            _short_commit(result),
        )
        for case, result in results.items()
    ]
    return [*found, Table("Conditions", CONDITION_HEADS, conditions)]


def notes(results: Results) -> list[str]:
    """Return commands, versions, concessions, and every system that is missing or failed."""
    lines = [f"`{result.command}`" for result in results.values()]
    outcomes = [(case, *each) for case, result in results.items() for each in result.outcomes.items()]
    lines += [f"{label}: {outcome.version}" for _, label, outcome in outcomes if outcome.version]
    lines += [
        f"{label} ran with `allow_inaccurate_quantization`: {outcome.concession}"
        for _, label, outcome in outcomes
        if outcome.concession
    ]
    if HTTP in results:
        lines.append(f"servers are idle for {SERVER_SETTLE_S:.0f} s between ready and the load")
    for result in results.values():
        lines += [f"{label} was not measured: {reason}" for label, reason in result.missing.items()]
    lines += [
        f"{label} multiplied with {outcome.instructions}" for _, label, outcome in outcomes if outcome.instructions
    ]
    for result in results.values():
        lines += [f"Not finished: {line}" for line in result.missing_runs()]
    lines += [f"{label} failed at {case}: {outcome.failure}" for case, label, outcome in outcomes if outcome.failure]
    return ["\n".join(f"- {line}" for line in dict.fromkeys(lines))] if lines else []


def _figures(title: str, results: Results) -> Table:
    medians = {figure: {each.label: each.value for each in medians_of(results, figure)} for figure in FIGURES}
    measured = {figure: values for figure, values in medians.items() if values}
    labels = dict.fromkeys(label for result in results.values() for label in result.outcomes)
    heads = ["", *(f"{figure_title(figure, results)}, {FIGURES[figure][1]}" for figure in measured)]
    return Table(title, heads, [(label, *(each.get(label) for each in measured.values())) for label in labels])


def figure_title(figure: str, results: Results) -> str:
    """Return the title of a figure, with the number of requests that these results have."""
    return f"{results[BATCH].num_requests} requests" if figure == BATCH else FIGURES[figure][0]


def _ratio_table(title: str, ratios: list[Ratio], results: Results) -> Table:
    """Return a row per figure and mode of ours; the strongest peer stands in bold."""
    peers = list(dict.fromkeys(ratio.peer_label for ratio in ratios))
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for ratio in ratios:
        groups.setdefault((ratio.figure, ratio.own_label), {})[ratio.peer_label] = ratio.better_by
    rows = []
    for (figure, own_label), better_by in groups.items():
        strongest = min(better_by, key=better_by.__getitem__)
        cells = {peer: f"{value:.2f}x" for peer, value in better_by.items()}
        cells[strongest] = f"**{cells[strongest]}**"
        rows.append((figure_title(figure, results), own_label, *map(cells.get, peers)))
    return Table(title, ["", "ours", *(f"over {peer}" for peer in peers)], rows)


def svg(title: str, results: Results) -> str:
    """Draw the medians, a panel for each figure, the best first."""
    panels = [figure for figure in SHOWN if medians_of(results, figure)]
    width = COLUMNS * (PANEL_WIDTH + GAP) - GAP
    drawing, top = Drawing(width, title), TOP
    drawing.text(0, 16, title, "title")
    conditions = [
        f"{result.environment['num_cpus']} cores of {result.environment['cpu_model']}, {result.date[:10]}, "
        f"commit {_short_commit(result)}"
        for result in results.values()
    ]
    drawing.text(0, 33, "; ".join(dict.fromkeys(conditions)), "note")
    for start in range(0, len(panels), COLUMNS):
        heights = [
            _draw_panel(drawing, results, figure, column * (PANEL_WIDTH + GAP), top)
            for column, figure in enumerate(panels[start : start + COLUMNS])
        ]
        top += max(heights) + GAP
    return drawing.markup(top)


def _draw_panel(drawing: Drawing, results: Results, figure: str, left: int, top: int) -> int:
    """Draw one panel and return its height."""
    title, unit = figure_title(figure, results), FIGURES[figure][1]
    is_less_better = figure in LESS_IS_BETTER
    medians = sorted(medians_of(results, figure), key=lambda each: each.value, reverse=not is_less_better)
    drawing.text(left, top + 14, title, "title")
    drawing.text(left, top + 29, f"{unit}, less is better" if is_less_better else unit, "note")
    largest = max(each.value for each in medians) or 1.0
    for number, median in enumerate(medians):
        y, weight = top + TITLE_HEIGHT + number * BAR_STEP, "title" if median.is_own else ""
        length = max(1.0, (PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH) * median.value / largest)
        shown = round(median.value) if median.value >= 100 else float(f"{median.value:.3g}")
        drawing.text(left, y + 11, median.label, weight)
        drawing.bar(left + LABEL_WIDTH, y, length, BAR_HEIGHT, "blue" if median.is_own else "grey")
        drawing.text(left + LABEL_WIDTH + length + 5, y + 11, format_figure(shown), weight)
    return TITLE_HEIGHT + len(medians) * BAR_STEP


def _short_commit(result: CaseResults) -> str:
    commit = result.environment["commit"] or "unknown"
    return commit[:12] + "+" * commit.endswith("+")
