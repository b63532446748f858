"""Status of a job, read from its progress by any process."""

import time
from dataclasses import dataclass
from typing import Any, Literal

from rayinfer.jobs.interfaces import Counts
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.progress.lease import is_held, read_lease

JobState = Literal["new", "running", "cancelling", "stopped", "complete"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """Status of a job."""

    state: JobState  # stopped: killed, cancelled or failed; the same command goes on
    rows_finished: int  # at the last checkpoint: written, or kept until their turn
    counts: Counts
    holder: str | None = None  # process and host of the copy that runs, or ran last
    last_seen_s: float | None = None  # since then
    summary: dict[str, Any] | None = None  # of a complete job


def read_status(folder: ProgressFolder) -> JobStatus:
    """Read the status of a job."""
    progress, summary, lease = folder.load(), folder.committed(), read_lease(folder)
    now_s = time.time()
    state: JobState = "new" if lease is None and progress is None else "stopped"
    if lease is not None and is_held(lease, now_s):
        state = "cancelling" if folder.cancel_requested() else "running"
    if summary is not None:
        state = "complete"
    return JobStatus(
        state=state,
        rows_finished=progress.rows_finished + progress.rows_ahead if progress else 0,
        counts=progress.counts if progress else Counts(),
        holder=f"{lease.owner}: process {lease.pid} on {lease.host}" if lease else None,
        last_seen_s=max(0.0, now_s - lease.renewed_s) if lease else None,
        summary=summary,
    )
