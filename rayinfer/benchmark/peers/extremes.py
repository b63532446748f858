"""Worst and best kind of processor of a model's comparisons, for one table over all of them."""

from pathlib import Path

from rayinfer.benchmark.peers.cases import BATCH, FIGURES
from rayinfer.benchmark.peers.results import Ratio, ratios_of, read_results
from rayinfer.benchmark.peers.systems import OWN
from rayinfer.benchmark.report import Table, write_markdown

NOTE = (
    "Each cell: the median over that of the strongest peer of equal width, and where. A processor that ends in a"
    " kernel path was kept to its instructions, as were the peers. Above 1 ours is better, for times too."
)


def write_extremes(model: str, folder: Path) -> None:
    """Write the table over all comparisons of a model in the folder, `peers-MODEL.processors.md`."""
    strongest: dict[tuple[str, str], dict[str, Ratio]] = {}  # by figure and own mode, then by machine
    batch_sizes: set[int] = set()
    for file in sorted(folder.glob(f"peers-{model}-*.json")):
        results = read_results(file)
        if any(result.model != model for result in results.values()):
            continue  # another model whose name begins alike, or an older file
        if BATCH in results:
            batch_sizes.add(results[BATCH].num_requests)
        machine = file.stem.removeprefix(f"peers-{model}-")
        for ratio in ratios_of(results):
            found = strongest.setdefault((ratio.figure, ratio.own_label), {})
            if machine not in found or ratio.better_by < found[machine].better_by:
                found[machine] = ratio
    titles = {figure: title for figure, (title, _) in FIGURES.items()}
    titles[BATCH] = f"{' or '.join(map(str, sorted(batch_sizes)))} requests"
    rows = [
        (titles[figure], own_label, *_extremes_of(strongest[figure, own_label]))
        for figure, own_label in sorted(strongest, key=lambda key: list(FIGURES).index(key[0]))
    ]
    table = Table("Ratios", ["", "ours", "worst", "best"], rows)
    write_markdown(folder / f"peers-{model}.processors.md", f"{OWN} by processor: {model}", [table], NOTE)


def _extremes_of(by_machine: dict[str, Ratio]) -> tuple[str, str]:
    ordered = sorted(by_machine, key=lambda machine: by_machine[machine].better_by)
    worst, best = (
        f"{by_machine[machine].better_by:.2f}x {by_machine[machine].peer_label}, {machine}"
        for machine in (ordered[0], ordered[-1])
    )
    return worst, best
