"""Checkpoints of a job: sink first, then progress, then nothing else counts."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rayinfer.jobs.events import CHECKPOINTED, EventBus
from rayinfer.jobs.interfaces import Counts, JobChanged, Position, Progress
from rayinfer.jobs.loop.row_window import RowWindow
from rayinfer.jobs.loop.rows_ahead import decode_rows, encode_rows
from rayinfer.jobs.parameters import Checkpointing
from rayinfer.jobs.providers import JobData, RowOutput
from rayinfer.jobs.seeds import SEED_SCHEME


class Checkpointer:
    """Only writer of a job: appends rows to the sink, and makes their progress durable by rows or seconds."""

    def __init__(
        self, data: JobData, settings: Checkpointing, events: EventBus, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._data = data
        self._settings = settings
        self._events = events
        self._clock = clock
        token = data.lease.fencing_token if data.lease is not None else 0
        self.progress = Progress(
            job_digest=data.job_digest,
            rows_finished=0,
            position=None,
            sink_offset=None,
            seed_scheme=SEED_SCHEME,
            fencing_token=token,
        )
        self.rows_ahead: dict[int, RowOutput] = {}  # of the checkpoint that the job goes on from
        self._num_saved = 0  # finished rows, written or not
        self._latest = clock()

    def resume(self) -> Progress | None:
        """Load the last checkpoint and cut the sink to it; None for a start from the first row. Raises JobChanged."""
        saved = self._data.progress.load()
        if saved is not None:
            if saved.job_digest != self._data.job_digest and not self._data.goes_on_after_change:
                raise JobChanged("the progress of this job comes from another configuration or input")
            if saved.seed_scheme != SEED_SCHEME:
                raise JobChanged(f"the job began with seeds by {saved.seed_scheme}, this version has {SEED_SCHEME}")
            own = self.progress
            if saved.job_digest == own.job_digest:
                self.rows_ahead = decode_rows(self._data.progress.load_rows_ahead())
            self.progress = replace(saved, fencing_token=own.fencing_token, job_digest=own.job_digest)
        lease = self._data.lease
        offset = None if saved is None else saved.sink_offset
        is_fenced = lease is not None and lease.predecessor_may_run
        self._data.sink.open(offset, fence=is_fenced)
        self._num_saved = self.progress.rows_finished + len(self.rows_ahead)
        if is_fenced:
            self._save(self.rows_ahead.values())  # so that a third copy finds the fenced files
        return saved

    def write(self, records: Sequence[Mapping[str, Any]], position: Position, counts: Counts) -> None:
        """Append records in the input's order; position and counts include them. Raises LeaseLost."""
        self._check_lease()
        self._data.sink.write(records)
        finished = self.progress.rows_finished + len(records)
        self.progress = replace(self.progress, rows_finished=finished, position=position, counts=counts)

    def save_if_due(self, window: RowWindow | None = None) -> None:
        """Save a checkpoint after enough rows or seconds with new rows, written or ended in the window."""
        settings = self._settings
        num_ended = 0 if window is None else window.num_ended
        num_new = self.progress.rows_finished + num_ended - self._num_saved
        is_due = settings.period_rows is not None and num_new >= settings.period_rows
        if settings.period_s is not None and num_new:
            is_due = is_due or self._clock() - self._latest >= settings.period_s
        if is_due:
            self.save(window)

    def save(self, window: RowWindow | None = None) -> None:
        """Make all rows so far durable, then the progress that covers them, with those that have ended in the window.

        Raises LeaseLost.
        """
        self._save([] if window is None else window.ended())

    def _save(self, ended: Collection[RowOutput]) -> None:
        self._check_lease()
        num_ahead, rows_ahead = encode_rows(ended)
        self.progress = replace(self.progress, sink_offset=self._data.sink.flush(), rows_ahead=num_ahead)
        self._check_lease()
        self._data.progress.save(self.progress, rows_ahead)
        self._num_saved, self._latest = self.progress.rows_finished + len(ended), self._clock()
        self._events.trigger(CHECKPOINTED, self.progress)

    def _check_lease(self) -> None:
        if self._data.lease is not None:
            self._data.lease.check()


def add_output(counts: Counts, output: RowOutput) -> Counts:
    """Count a row."""
    return Counts(
        ok=counts.ok + (output.error is None),
        errors=counts.errors + (output.error is not None),
        prompt_tokens=counts.prompt_tokens + output.prompt_tokens,
        output_tokens=counts.output_tokens + output.output_tokens,
    )
