"""Limit of error rows beyond which a job ends."""

from rayinfer.jobs.interfaces import Counts, JobError
from rayinfer.jobs.parameters import JobParameters

LEAST_ROWS = 100  # before a share of errors says anything, unless there are no more rows


class TooManyErrors(JobError):
    """A job with more error rows than its limit allows."""


class ErrorLimit:
    """Check of the counts against `max_errors`."""

    def __init__(self, parameters: JobParameters) -> None:
        self._limit = parameters.max_errors
        self._max_rows = parameters.max_error_rows
        self._max_share = parameters.max_error_share
        self._first_error = ""

    def note(self, row_id: str, error: str) -> None:
        """Keep the first error, which the message shows."""
        self._first_error = self._first_error or f"row {row_id}: {error:.300}"

    @property
    def first_error(self) -> str:
        """The first error of this run; empty if there was none."""
        return self._first_error

    def check(self, counts: Counts, *, is_complete: bool = False) -> None:
        """Raise TooManyErrors beyond the limit."""
        num_rows = counts.ok + counts.errors
        is_share_known = num_rows >= LEAST_ROWS or is_complete
        if counts.errors <= self._max_rows and (not is_share_known or counts.errors <= self._max_share * num_rows):
            return
        shown = f"; the first: {self._first_error}" if self._first_error else ""
        raise TooManyErrors(
            f"{counts.errors:,} of {num_rows:,} rows have errors, more than max_errors {self._limit} allows{shown}"
        )
