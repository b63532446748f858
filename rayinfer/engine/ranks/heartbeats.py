"""Heartbeats between the ranks of an engine, from a thread of each.

They come whatever the rank computes, loads or waits for, as long as it gets at Python's lock once in a while: how long
a step takes does not matter.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping

from rayinfer.engine.ranks.control_connection import ControlLine, LineLost
from rayinfer.engine.ranks.plan_codec import BadMessage, Beat
from rayinfer.engine.ranks.rendezvous import GROUP_TIMEOUT_S

LONGEST_INTERVAL_S = 1.0
BEATS_IN_TIMEOUT = 6
READ_S = 1.0  # for the rest of a beat that has begun to come


class RankBeats:
    """Beats on every line, and calls `on_silence` once with the first rank that does so no more, and its seconds.

    Where `is_stopped` can tell whether a rank's process computes no more, it is lost after `timeout_s` if so, and
    otherwise has GROUP_TIMEOUT_S at least: on a busy machine, or while it loads, it may come to nothing for seconds.
    """

    def __init__(
        self,
        lines: Mapping[int, ControlLine],
        timeout_s: float,
        on_silence: Callable[[int, float], None],
        is_stopped: Callable[[int], bool] | None = None,
    ) -> None:
        self._lines = lines  # by the rank at the other end
        self._interval_s = min(LONGEST_INTERVAL_S, timeout_s / BEATS_IN_TIMEOUT)
        self._silent_ticks = round(timeout_s / self._interval_s)
        longest_s = timeout_s if is_stopped is None else max(timeout_s, GROUP_TIMEOUT_S)
        self._most_silent_ticks = round(longest_s / self._interval_s)
        self._is_stopped = is_stopped
        self._on_silence = on_silence
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def stop(self) -> None:
        """Beat no more, and listen no more."""
        self._is_over.set()

    def close(self) -> None:
        """Stop, and hang up."""
        self.stop()
        for line in self._lines.values():
            line.hang_up()

    def _run(self) -> None:
        """Count own ticks, not seconds: delays of this thread must not count against other ranks."""
        silent_ticks = dict.fromkeys(self._lines, 0)
        try:
            while not self._is_over.wait(self._interval_s):
                for rank, line in self._lines.items():
                    silent_ticks[rank] = 0 if _has_beaten(line) else silent_ticks[rank] + 1
                    with contextlib.suppress(LineLost):
                        line.send(Beat(), 0.0)
                lost = [rank for rank, ticks in silent_ticks.items() if self._is_lost(rank, ticks)]
                if lost and not self._is_over.is_set():
                    self.stop()
                    first = max(lost, key=silent_ticks.__getitem__)
                    self._on_silence(first, silent_ticks[first] * self._interval_s)
        finally:
            for line in self._lines.values():
                line.close()

    def _is_lost(self, rank: int, silent_ticks: int) -> bool:
        if silent_ticks >= self._most_silent_ticks:
            return True
        return silent_ticks >= self._silent_ticks and self._is_stopped is not None and self._is_stopped(rank)


def _has_beaten(line: ControlLine) -> bool:
    has_beaten = False
    with contextlib.suppress(LineLost, BadMessage):
        while line.has_unread:
            has_beaten |= isinstance(line.receive(READ_S), Beat)
    return has_beaten
