"""Root cause of a group's failure: ranks that lose a peer fail as well, and often report it sooner."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from rayinfer.engine.ranks.control_connection import ConnectionLost, ControlConnection, any_closed
from rayinfer.engine.ranks.rank_messages import Failed
from rayinfer.errors import EngineDead
from rayinfer.wire import BadMessage

SEND_S = 1.0  # for the report of a failure
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The failure of one rank."""

    rank: int
    text: str  # names it
    is_consequence: bool  # of another rank's exit
    failed_at: float | None = None  # None for a rank that has gone without a report

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Sort key, causes first: own failures by time, then vanished ranks, then ranks that lost a peer."""
        return self.is_consequence, self.failed_at is None, self.failed_at or 0.0


class RankLost(EngineDead):
    """Another rank has failed or gone; it may have done so because of a third."""

    def __init__(self, failure: RankFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def rank_lost(rank: int, error: Exception) -> RankLost:
    """Make the error for a rank whose connection has broken."""
    return RankLost(RankFailure(rank, f"rank {rank} is lost: {error}", is_consequence=False))


def rank_failed(rank: int, message: Failed) -> RankLost:
    """Make the error for a rank that has reported why it exits."""
    text = f"rank {rank} failed: {message.reason}"
    return RankLost(RankFailure(rank, text, message.is_consequence, message.failed_at))


def report_failure(connection: ControlConnection, error: BaseException) -> None:
    """Send rank 0 the reason why this rank exits, if it still reads."""
    with contextlib.suppress(ConnectionLost):
        connection.send(Failed(f"{type(error).__name__}: {error}", is_consequence(error), time.time()), SEND_S)


def is_consequence(error: BaseException) -> bool:
    """Return whether an error only reports that another rank has gone."""
    return isinstance(error, ConnectionLost | EngineDead | dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)  # which names its source files
    )


def own_cause(error: BaseException) -> str:
    """Describe a failure as this rank has seen it."""
    return str(error) if isinstance(error, EngineDead) else f"{type(error).__name__}: {error}"


def root_cause(error: BaseException, connections: Sequence[ControlConnection], grace_s: float) -> RankFailure:
    """Return the cause of a failure that rank 0 has seen: this one, or an earlier one that a rank reports.

    `connections` are those to rank 1, rank 2 and so on. Unless a cause is found, reports are awaited for `grace_s`.
    """
    seen = _seen(error)
    failures, deadline = {seen.rank: seen}, time.monotonic() + grace_s
    still_open = dict(enumerate(connections, start=1))
    while True:
        for rank, connection in list(still_open.items()):
            if (failure := _end_of(rank, connection, grace_s)) is not None:
                del still_open[rank]
                if rank not in failures or failure.failed_at is not None:  # a report says more than a closed connection
                    failures[rank] = failure
        best = min(failures.values(), key=lambda failure: failure.order)
        if not best.is_consequence or not still_open or time.monotonic() > deadline:
            return best
        time.sleep(POLL_S)


def closed_rank(connections: Sequence[ControlConnection], first_rank: int) -> RankLost | None:
    """Return the loss of a rank that has closed its connection, or None."""
    if not any_closed(connections, 0.0):
        return None
    ranks = enumerate(connections, start=first_rank)
    rank = next((rank for rank, connection in ranks if any_closed([connection], 0.0)), first_rank)
    return rank_lost(rank, ConnectionLost("it has closed the connection"))


def _seen(error: BaseException) -> RankFailure:
    if isinstance(error, RankLost):
        return error.failure
    return RankFailure(0, own_cause(error), is_consequence(error), time.time())


def _end_of(rank: int, connection: ControlConnection, timeout_s: float) -> RankFailure | None:
    """Read a rank's final message; None as long as the rank runs."""
    try:
        while connection.has_unread:
            if isinstance(message := connection.receive(timeout_s), Failed):
                return rank_failed(rank, message).failure
    except (ConnectionLost, BadMessage) as error:
        return rank_lost(rank, error).failure
    return None
