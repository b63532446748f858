"""Verification of a complete job: its record, its files' digests, and the ids of its rows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from rayinfer.jobs.interfaces import JobError, RowSource
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sinks.reading import output_ids, wrong_digests

MAX_PROBLEMS = 20
DESCRIPTION = "output"  # key of the commit record under which the sink's description stands
ID_COLUMN = "id_column"  # likewise, of the output


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """Findings of a verification; without problems the output is complete and unchanged."""

    num_rows: int
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """True if there are no problems."""
        return not self.problems


def verify_job(source: RowSource, output: str | Path, progress: ProgressFolder) -> Verification:
    """Compare a job's output with its input and its commit record; rows are read, nothing is computed."""
    summary = progress.committed()
    if summary is None:
        return Verification(num_rows=0, problems=[f"{progress.location}: the job is not complete: no commit record"])
    problems: list[str] = []
    try:
        problems += wrong_digests(output, summary.get(DESCRIPTION) or {})
        counted = _Counted(output_ids(output, summary.get(ID_COLUMN, "id")))
        problems += _wrong_ids((row.id for row in source.rows()), counted)
    except JobError as error:
        return Verification(num_rows=0, problems=[*problems, str(error)])
    return Verification(num_rows=counted.count, problems=problems[:MAX_PROBLEMS])


class _Counted:
    """Ids that are counted as they are read."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = ids
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for row_id in self._ids:
            self.count += 1
            yield row_id


def _wrong_ids(expected: Iterable[str], found: Iterable[str]) -> list[str]:
    """Compare ids in order, which a source guarantees to be unique, so that equal ones are, too."""
    problems = []
    for index, (wanted, given) in enumerate(zip_longest(expected, found)):
        if wanted == given:
            continue
        if given is None:
            problems.append(f"row {index} ({wanted!r:.80}) is missing at the end")
        elif wanted is None:
            problems.append(f"row {index} ({given!r:.80}) is beyond the input's end")
        else:
            problems.append(f"row {index} has the id {given!r:.80} instead of {wanted!r:.80}")
        if len(problems) == MAX_PROBLEMS:
            break
    return problems
