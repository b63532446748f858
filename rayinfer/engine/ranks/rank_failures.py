"""Root cause of a group's failure: ranks that lose a peer fail as well, and often report it sooner."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from rayinfer.engine.ranks.control_connection import ControlLine, LineLost, hung_up
from rayinfer.engine.ranks.plan_codec import BadMessage, Failed
from rayinfer.errors import EngineDead

LAST_WORDS_S = 0.5  # for a rank that is going to say why it ends
TELL_S = 1.0  # to send it
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The failure of one rank."""

    rank: int
    text: str  # names it
    is_consequence: bool  # of another rank's end
    failed_at: float | None = None  # None of a rank that has gone without a word

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Sort key, causes first: own failures by time, then vanished ranks, then ranks that lost a peer."""
        return self.is_consequence, self.failed_at is None, self.failed_at or 0.0


class RankLost(EngineDead):
    """Another rank has failed or gone; it may have done so because of a third."""

    def __init__(self, failure: RankFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def lost(rank: int, error: Exception) -> RankLost:
    """Make the error for a rank whose connection has broken."""
    return RankLost(RankFailure(rank, f"rank {rank} is lost: {error}", is_consequence=False))


def failed(rank: int, said: Failed) -> RankLost:
    """Make the error for a rank that has reported why it ends."""
    return RankLost(RankFailure(rank, f"rank {rank} failed: {said.reason}", said.is_consequence, said.failed_at))


def say_last_words(line: ControlLine, error: BaseException) -> None:
    """Send rank 0 the reason why this rank ends, if it still listens."""
    with contextlib.suppress(LineLost):
        line.send(Failed(f"{type(error).__name__}: {error}", is_consequence(error), time.time()), TELL_S)


def is_consequence(error: BaseException) -> bool:
    """Return whether an error only reports that another rank has gone."""
    return isinstance(error, LineLost | EngineDead | dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)  # which names its source files
    )


def first_failure(error: BaseException, lines: Sequence[ControlLine], grace_s: float = LAST_WORDS_S) -> RankFailure:
    """Return the cause of a failure that rank 0 has seen: this one, or an earlier one that a rank reports.

    `lines` are those to rank 1, rank 2 and so on. Unless a cause is found, it is waited for until the grace is over.
    """
    seen = _seen(error)
    failures, deadline = {seen.rank: seen}, time.monotonic() + grace_s
    open_lines = dict(enumerate(lines, start=1))
    while True:
        for rank, line in list(open_lines.items()):
            if (failure := _end_of(rank, line)) is not None:
                del open_lines[rank]
                if rank not in failures or failure.failed_at is not None:  # its words say more than its silence
                    failures[rank] = failure
        best = min(failures.values(), key=lambda failure: failure.order)
        if not best.is_consequence or not open_lines or time.monotonic() > deadline:
            return best
        time.sleep(LOOK_S)


def rank_that_hung_up(lines: Sequence[ControlLine], first_rank: int, timeout_s: float) -> RankLost | None:
    """Wait for a line to be closed at its other end; returns the loss of that rank, or None when the time is over."""
    if not hung_up(lines, timeout_s):
        return None
    rank = next((rank for rank, line in enumerate(lines, start=first_rank) if hung_up([line], 0.0)), first_rank)
    return lost(rank, LineLost("it has hung up"))


def _seen(error: BaseException) -> RankFailure:
    if isinstance(error, RankLost):
        return error.failure
    text = str(error) if isinstance(error, EngineDead) else f"{type(error).__name__}: {error}"
    return RankFailure(0, text, is_consequence(error), time.time())


def _end_of(rank: int, line: ControlLine) -> RankFailure | None:
    """Read a rank's final message; None as long as the rank runs."""
    try:
        while line.has_unread:
            if isinstance(said := line.receive(LAST_WORDS_S), Failed):
                return failed(rank, said).failure
    except (LineLost, BadMessage) as error:
        return lost(rank, error).failure
    return None
