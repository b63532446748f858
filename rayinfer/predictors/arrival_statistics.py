"""Statistics of arrivals, which say whether and for how long further ones are worth waiting for."""

import math
import statistics
from collections import deque

NUM_GAPS = 32  # latest gaps between arrivals, whose median is the expected one
GAP_FACTOR = 4.0  # expected gaps for which a batch waits for the next arrival
LONGEST_GAP_S = 10.0
NUM_RETURNS = 16  # latest batches after which the time was measured until as many items had come
RETURN_FACTOR = 1.5  # of the median of these times


class ArrivalStatistics:
    """Expected times, from the latest arrivals and ends of batches; infinity while nothing is known.

    Clients that send their next item when they have an answer come back soon after their batch, all of them. Where
    arrivals have nothing to do with answers, as many as a batch had take about as long as a step.
    """

    def __init__(self) -> None:
        self.gap_s = math.inf  # within which another item should come after one
        self.return_s = math.inf  # within which as many items as the latest batch had should come after its end
        self.last_arrival = -math.inf
        self._gaps: deque[float] = deque(maxlen=NUM_GAPS)
        self._returns: deque[float] = deque(maxlen=NUM_RETURNS)
        self._batch_ended = -math.inf
        self._num_missing = 0  # items until as many have come as the batch had

    def record_arrival(self, now: float) -> None:
        """Record an arrival."""
        if self.last_arrival > -math.inf:
            self._gaps.append(min(now - self.last_arrival, LONGEST_GAP_S))
            self.gap_s = GAP_FACTOR * statistics.median(self._gaps)
        self.last_arrival = now
        if self._num_missing:
            self._num_missing -= 1
            if not self._num_missing:
                self._record_return(now)

    def record_batch_end(self, now: float, num_items: int) -> None:
        """Record the end of a batch."""
        if self._num_missing:
            self._record_return(now)  # at least as long
        self._batch_ended, self._num_missing = now, num_items

    def _record_return(self, now: float) -> None:
        self._returns.append(min(now - self._batch_ended, LONGEST_GAP_S))
        self.return_s = RETURN_FACTOR * statistics.median(self._returns)
