"""Counters of batches in a router."""

from dataclasses import dataclass


@dataclass(slots=True)
class BatchCounts:
    """Rows of one router, and what the owner of all batches last answered."""

    num_open: int = 0
    num_waiting_rows: int = 0
    num_running_rows: int = 0
    num_completed_rows: int = 0
    num_failed_rows: int = 0
