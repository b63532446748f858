"""Predictions that are being computed, which equal requests wait for."""

import asyncio
from dataclasses import dataclass

from rayinfer.prediction_cache.cache_key import CacheKey
from rayinfer.prediction_cache.memory_cache import CachedPrediction


@dataclass(frozen=True, slots=True)
class FlightResult:
    """The end of a computation: a prediction, or an error that every equal request would meet."""

    prediction: CachedPrediction | None = None
    error: Exception | None = None


class Flight:
    """One computation; its leader ends it with a result, or leaves it to the next request that waits.

    A leader that is never begun, as its client was gone, leaves when it is garbage-collected: only the leader's
    `Lead` may refer to itself.
    """

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self._ended: asyncio.Future[FlightResult | None] = asyncio.get_running_loop().create_future()

    async def wait(self, timeout_s: float | None) -> FlightResult | None:
        """Wait for its end, None where the leader left; raises TimeoutError. Cancelling it ends no more than itself."""
        done, _ = await asyncio.wait([self._ended], timeout=timeout_s)
        if not done:
            raise TimeoutError
        return self._ended.result()

    def end(self, result: FlightResult | None) -> None:
        """Wake all that wait, in the order in which they came."""
        if not self._ended.done() and not self._ended.get_loop().is_closed():
            self._ended.set_result(result)


class Flights:
    """All computations of a router, by key."""

    def __init__(self) -> None:
        self._by_key: dict[CacheKey, Flight] = {}

    def find(self, key: CacheKey, priority: int) -> Flight | None:
        """Return the computation that a request may wait for: none that is less urgent than itself."""
        flight = self._by_key.get(key)
        return flight if flight is not None and flight.priority <= priority else None

    def lead(self, key: CacheKey, priority: int) -> "Lead":
        """Begin a computation; later requests wait for it instead of another with the same key."""
        flight = self._by_key[key] = Flight(priority)
        return Lead(self, key, flight)

    def _remove(self, key: CacheKey, flight: Flight) -> None:
        if self._by_key.get(key) is flight:
            del self._by_key[key]


class Lead:
    """The place of the request that computes; free again when it is garbage-collected."""

    __slots__ = ("_flight", "_flights", "key")

    def __init__(self, flights: Flights, key: CacheKey, flight: Flight) -> None:
        self.key = key
        self._flights = flights
        self._flight = flight

    def end(self, result: FlightResult) -> None:
        """Give the result to all requests that wait."""
        self._flights._remove(self.key, self._flight)
        self._flight.end(result)

    def leave(self) -> None:
        """Leave the computation to the first request that waits; does nothing after `end`."""
        self._flights._remove(self.key, self._flight)
        self._flight.end(None)

    __del__ = leave
