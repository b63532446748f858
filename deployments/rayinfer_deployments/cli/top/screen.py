"""One screen of `rayinfer top`, made of rich's tables; names and reasons are plain text."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rayinfer_deployments.cli.plain_text import plain_text
from rayinfer_deployments.cli.top.history import ModelHistory, Sample

BARS = "▁▂▃▄▅▆▇█"
NONE = "-"
NARROW = 100  # columns below which bars, names and figures are short, and figures stand in two rows
MAX_NAME = 48
MAX_NARROW_NAME = 16
MAX_REASON = 200
MAX_QUEUE_ROWS = 8
STATE_STYLES = {"running": "green", "dead": "red"}


def screen(url: str, models: Mapping[str, ModelHistory], notice: str, width: int) -> RenderableType:
    """Draw all models, under a line with the address and the time."""
    head = Text.assemble(
        (shown(url, 200), "bold"), "  ", time.strftime("%H:%M:%S"), "  ", (shown(notice, MAX_REASON), "yellow")
    )
    return Group(head, *(_model(name, history, width) for name, history in models.items()))


def shown(text: str, limit: int = MAX_NAME) -> str:
    """Return a text of others on one line."""
    return plain_text(text, limit, kept="")


def _model(name: str, history: ModelHistory, width: int) -> Panel:
    sample = history.latest
    state = (
        Text("ready", "green") if sample["ready"] else Text(shown(f"not ready: {sample['reason']}", MAX_REASON), "red")
    )
    parts: list[RenderableType] = [
        *_figures(history, 4 if width < NARROW else 8),
        _sparkline(history.rates, width - 6),
        _engines(sample, is_narrow=width < NARROW),
    ]
    if sample.get("queue"):
        parts.append(_queue(sample["queue"]))
    parts += [
        Text(f"{time.strftime('%H:%M:%S', time.localtime(event.time_s))} {shown(event.text, MAX_REASON)}", event.style)
        for event in reversed(history.events)
    ]
    return Panel(Group(*parts), title=Text.assemble((shown(name), "bold"), "  ", state), title_align="left")


def _figures(history: ModelHistory, in_a_row: int) -> list[Table]:
    sample = history.latest
    waiting = sample["waiting"] + sum(engine["waiting"] for engine in sample["engines"].values())
    hits, accepted = history.hit_share(), history.accepted_share()
    cells = {
        "tokens/s out": _number(history.rate("generation_tokens")),
        "tokens/s in": _number(history.rate("prompt_tokens")),
        "TTFT p50/p95": " / ".join(map(_seconds, history.percentiles("first_token"))),
        "inter-token p50/p95": " / ".join(map(_seconds, history.percentiles("inter_token"))),
        "running": str(sum(engine["running"] for engine in sample["engines"].values())),
        "waiting": str(waiting),
        "prefix hits": NONE if hits is None else f"{hits:.0%}",
        "refused": str(sum(sample["rejected"].values())),
    }
    if accepted is not None:
        cells["drafts accepted"] = f"{accepted:.0%}"
    tables, listed = [], list(cells.items())
    for first in range(0, len(listed), in_a_row):
        part = listed[first : first + in_a_row]
        tables.append(table := Table.grid(padding=(0, 3)))
        table.add_row(*(Text(label, "dim") for label, _ in part))
        table.add_row(*(Text(value, "bold") for _, value in part))
    return tables


def _engines(sample: Sample, *, is_narrow: bool) -> Table:
    bar_cells = 6 if is_narrow else 16
    heads = ("engine", "state", "batch", "", "KV blocks", "used+cached" if is_narrow else "", "on")
    table = Table(*heads, box=None, pad_edge=False, header_style="dim")
    for name, engine in sample["engines"].items():
        total, used, cached = engine["kv_blocks_total"], engine["kv_blocks_used"], engine.get("kv_blocks_cached", 0)
        most = max(engine.get("max_num_seqs", 0), engine["running"], 1)
        blocks = (
            f"{used}+{cached} of {total}"
            if is_narrow
            else f"{used} used, {cached} cached, {total - used - cached} free"
        )
        table.add_row(
            Text(shown(_end_of_name(name, MAX_NARROW_NAME if is_narrow else MAX_NAME))),
            Text(shown(engine["state"]), STATE_STYLES.get(engine["state"], "yellow")),
            _bar([(engine["running"], "cyan")], most, bar_cells),
            f"{engine['running']}/{most}",
            _bar([(used, "cyan"), (cached, "blue")], total, bar_cells) if total else Text(NONE),
            blocks if total else "",
            Text(shown(engine.get("device", "")), "dim"),
        )
    return table


def _end_of_name(name: str, limit: int) -> str:
    """Cut the beginning of a long name, up to a hyphen if there is one: names of engines differ in their ends."""
    if len(name) <= limit:
        return name
    end = name[1 - limit :]
    return f"…{end.partition('-')[2] or end}"


def _queue(rows: Sequence[Mapping[str, Any]]) -> Text:
    listed = [f"{row['waiting']} of {row['tenant'] or '(no tenant)'} at priority {row['priority']}" for row in rows]
    more = f", and {len(rows) - MAX_QUEUE_ROWS} more" if len(rows) > MAX_QUEUE_ROWS else ""
    return Text(shown(f"waiting: {', '.join(listed[:MAX_QUEUE_ROWS])}{more}", 1000))


def _bar(parts: Sequence[tuple[int, str]], total: int, num_cells: int) -> Text:
    bar, left = Text(), num_cells
    for value, style in parts:
        cells = min(left, round(num_cells * value / total)) if total else 0
        bar.append("█" * cells, style)
        left -= cells
    return bar.append("·" * left, "dim")


def _sparkline(rates: Sequence[float], width: int) -> Text:
    latest = list(rates)[-max(10, width) :]
    top = max(latest, default=0.0) or 1.0
    return Text("".join(BARS[min(len(BARS) - 1, int(rate / top * (len(BARS) - 1) + 0.5))] for rate in latest), "cyan")


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
