"""The comparison as Markdown: all figures, the important ratios, and missing contenders."""

from collections.abc import Mapping, Sequence

from rayinfer.benchmark.load.report import format_figure
from rayinfer.benchmark.peers.cases import FIGURES, HTTP, START
from rayinfer.benchmark.peers.own import NAME as OWN
from rayinfer.benchmark.peers.ratios import Ratio, ratios_of
from rayinfer.benchmark.peers.results import Section

NO_FIGURE = "-"


def markdown(model: str, sections: Mapping[str, Section]) -> str:
    """Write the whole report."""
    engine_works = [work for work in sections if work not in (HTTP, START)]
    server_works = [work for work in (HTTP, START) if work in sections]
    parts = [f"# {OWN} and its peers: {model}", _explanation()]
    for title, works in (("The engine alone", engine_works), ("Through its server", server_works)):
        chosen = {work: sections[work] for work in works}
        if chosen:
            parts += [f"## {title}", _figures_table(chosen)]
    parts += ["## Ratios", _ratio_table(ratios_of(sections)), "## Taken on", _circumstances(sections)]
    concessions = _concessions(sections)
    if concessions:
        parts += ["## Run with `allow_inaccurate_quantization`", "\n".join(f"- {line}" for line in concessions)]
    absent = _absent(sections)
    if absent:
        parts += ["## Not measured", "\n".join(f"- {line}" for line in absent)]
    return "\n\n".join(parts) + "\n"


def _explanation() -> str:
    return (
        "Medians of runs taken in turn (A B C A B C), all cores for everybody, greedy, the same prompts,"
        " no prefix shared. Higher is better, but for times."
    )


def _figures_table(sections: Mapping[str, Section]) -> str:
    figures = [name for name in FIGURES if any(_has(section, name) for section in sections.values())]
    labels = dict.fromkeys(label for section in sections.values() for label in section.outcomes)
    head = ["", *(f"{title}, {unit}" for title, unit in map(FIGURES.__getitem__, figures))]
    rows = []
    for label in labels:
        medians = {
            figure: median
            for section in sections.values()
            if (outcome := section.outcomes.get(label))
            for figure in outcome.runs
            if (median := outcome.median(figure)) is not None
        }
        rows.append([label, *(format_figure(medians[name]) if name in medians else NO_FIGURE for name in figures)])
    return _table(head, rows)


def _has(section: Section, figure: str) -> bool:
    return any(figure in outcome.runs for outcome in section.outcomes.values())


def _ratio_table(ratios: Sequence[Ratio]) -> str:
    """One line per figure and mode of ours; the peer that is hardest to beat stands in bold."""
    if not ratios:
        return f"None: a ratio needs {OWN} and a peer with weights as wide."
    peers = list(dict.fromkeys(ratio.peer_label for ratio in ratios))
    lines: dict[tuple[str, str], dict[str, float]] = {}
    for ratio in ratios:
        lines.setdefault((ratio.figure, ratio.own_label), {})[ratio.peer_label] = ratio.better_by
    rows = []
    for (figure, own_label), better_by in lines.items():
        hardest = min(better_by, key=better_by.__getitem__)
        cells = {peer: f"{value:.2f}x" for peer, value in better_by.items()}
        cells[hardest] = f"**{cells[hardest]}**"
        rows.append([FIGURES[figure][0], own_label, *(cells.get(peer, NO_FIGURE) for peer in peers)])
    return _table(["", "ours", *(f"over {peer}" for peer in peers)], rows)


def _circumstances(sections: Mapping[str, Section]) -> str:
    rows = []
    for work, section in sections.items():
        environment = section.environment
        memory = " ".join(map(format_figure, section.memory_read_gb_s))
        rows.append(
            [
                work,
                section.date,
                f"{environment['cpu_model']}, {environment['num_cpus']} cores",
                " ".join(section.cpu_flags),
                memory,
                str(section.rounds),
                (environment["commit"] or "unknown")[:12] + "+" * str(environment["commit"]).endswith("+"),
            ]
        )
    table = _table(
        ["work", "date", "processor", "instructions", "memory read, GB/s, before each round", "rounds", "commit"], rows
    )
    commands = dict.fromkeys(section.command for section in sections.values())
    versions = {
        label: outcome.version
        for section in sections.values()
        for label, outcome in section.outcomes.items()
        if outcome.version
    }
    lines = [f"- `{command}`" for command in commands] + [
        f"- {label}: {version}" for label, version in versions.items()
    ]
    return table + "\n\n" + "\n".join(lines)


def _concessions(sections: Mapping[str, Section]) -> list[str]:
    lines = [
        f"{label}: {outcome.concession}"
        for section in sections.values()
        for label, outcome in section.outcomes.items()
        if outcome.concession
    ]
    return list(dict.fromkeys(lines))


def _absent(sections: Mapping[str, Section]) -> list[str]:
    lines = [f"{label}: {reason}" for section in sections.values() for label, reason in section.missing.items()]
    lines += [
        f"{label} failed at {work}: {outcome.failure}"
        for work, section in sections.items()
        for label, outcome in section.outcomes.items()
        if outcome.failure
    ]
    return list(dict.fromkeys(lines))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
