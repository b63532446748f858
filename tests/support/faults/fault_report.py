"""Results of fault tests: one row per fault, in one table at the end of a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SLACK = 10.0  # tests fail beyond this many times a figure in seconds: machines differ, counts do not
COUNTS = ("exact", "refused", "failed", "wrong", "hung")


@dataclass(kw_only=True)
class FaultRow:
    """One fault, once: what was done, what the clients counted, how long it took, and whether that is as it should."""

    fault: str
    injected: str
    without: str = ""  # the protection that was off: the fault has to be seen then
    sent: int = 0
    exact: int = 0
    refused: int = 0  # 429 or 503 with the time to come back
    failed: int = 0
    wrong: int = 0
    hung: int = 0
    leaked: int = 0  # KV blocks, requests and connections that were left
    gap_s: float | None = None
    gap_ceiling_s: float | None = None
    recovery_s: float | None = None
    recovery_ceiling_s: float | None = None
    note: str = ""
    first_failure: str = ""  # what it was; not in the table
    verdict: str = ""

    def count(self, verdicts: Mapping[str, int]) -> "FaultRow":
        """Take over what clients counted."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + verdicts.get(name, 0))
        self.sent += sum(verdicts.values())
        return self

    @property
    def num_harmed(self) -> int:
        """Return what should be nothing: requests that got no answer or a wrong one, and what was left behind."""
        return self.failed + self.wrong + self.hung + self.leaked


class FaultReport:
    """Table of a run's faults, which checks every row."""

    def __init__(self) -> None:
        self.rows: list[FaultRow] = []

    def passes(self, row: FaultRow, *, may_fail: int = 0, may_refuse: bool = False) -> None:
        """Keep the row of a fault under protection, and raise AssertionError if it was not borne.

        `may_fail` requests may have failed: those that the fault is about. None may have been refused unless the fault
        leaves no room.
        """
        times = [(row.gap_s, row.gap_ceiling_s), (row.recovery_s, row.recovery_ceiling_s)]
        over = max((taken / limit for taken, limit in times if taken is not None and limit is not None), default=0.0)
        is_harmless = row.sent > 0 and row.num_harmed - row.failed == 0 and row.failed <= may_fail
        is_harmless = is_harmless and (may_refuse or not row.refused)
        row.verdict = "FAIL" if not is_harmless or over > SLACK else "slow" if over > 1.0 else "pass"
        self.rows.append(row)
        assert row.verdict != "FAIL", row

    def is_seen(self, row: FaultRow, *, is_harmed: bool | None = None) -> None:
        """Keep the row of a fault without protection, and raise AssertionError if the clients noticed nothing."""
        row.verdict = "seen" if (row.num_harmed > 0 if is_harmed is None else is_harmed) else "NOT SEEN"
        self.rows.append(row)
        assert row.verdict == "seen", row

    def as_markdown(self) -> str:
        """Write the table."""
        header = ("fault", "what was done", "without", "sent", *COUNTS, "leaked", "gap s", "back after s", "verdict")
        rows = [
            (
                row.fault,
                row.injected + (f" ({row.note})" if row.note else ""),
                row.without,
                *(str(getattr(row, name)) for name in ("sent", *COUNTS, "leaked")),
                _time(row.gap_s, row.gap_ceiling_s),
                _time(row.recovery_s, row.recovery_ceiling_s),
                row.verdict,
            )
            for row in sorted(self.rows, key=lambda row: row.fault)
        ]
        return "\n".join(_aligned([header, *rows]))

    def write(self, folder: Path, heading: str) -> None:
        """Write the table as Markdown, and its rows as JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "faults.md").write_text(f"{heading}\n\n{self.as_markdown()}\n")
        (folder / "faults.json").write_text(json.dumps([asdict(row) for row in self.rows], indent=1) + "\n")


def _time(taken: float | None, ceiling: float | None) -> str:
    if taken is None:
        return ""
    return f"{taken:.2f}" if ceiling is None else f"{taken:.2f} <= {ceiling:.3g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]
