"""Autoscaling policies of a simulation: by engine metrics, by Serve's ongoing requests, and a fixed number."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from rayinfer.routing.autoscaling_policy import ModelLoad, ScalingPolicy
from rayinfer.routing.autoscaling_settings import AutoscalingSettings


class CountingPolicy(Protocol):
    """Policy that sets the number of engines."""

    def decide(self, now_s: float, target: int, load: ModelLoad, num_ongoing: int) -> int:
        """See ScalingPolicy.decide; `num_ongoing` are the requests that have not ended."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedCount:
    """Constant number of engines."""

    num_engines: int

    def decide(self, now_s: float, target: int, load: ModelLoad, num_ongoing: int) -> int:
        """See CountingPolicy."""
        return self.num_engines


class ByEngineMetrics:
    """Policy of `rayinfer serve`."""

    def __init__(self, settings: AutoscalingSettings) -> None:
        self._count = ScalingPolicy(settings)

    def decide(self, now_s: float, target: int, load: ModelLoad, num_ongoing: int) -> int:
        """See CountingPolicy; Serve itself starts the first engine for a request that waits."""
        return self._count.decide(now_s, target, load)


class ByOngoingRequests:
    """Serve's own policy: the mean of ongoing requests over a while, divided by what an engine should have.

    As in Ray 2.60's `replica_queue_length_autoscaling_policy`, with its delays: a decision has to stand for so long.
    """

    def __init__(
        self,
        *,
        min_replicas: int,
        max_replicas: int,
        target_ongoing_requests: float,
        look_back_s: float = 30.0,
        upscale_delay_s: float = 30.0,
        downscale_delay_s: float = 600.0,
    ) -> None:
        self._bounds = (min_replicas, max_replicas)
        self._target_ongoing = target_ongoing_requests
        self._look_back_s = look_back_s
        self._delays_s = {1: upscale_delay_s, -1: downscale_delay_s}
        self._seen: deque[tuple[float, int]] = deque()
        self._direction = 0
        self._since = 0.0

    def decide(self, now_s: float, target: int, load: ModelLoad, num_ongoing: int) -> int:
        """See CountingPolicy."""
        self._seen.append((now_s, num_ongoing))
        while self._seen[0][0] < now_s - self._look_back_s:
            self._seen.popleft()
        if load.num_engines == 0:
            return max(target, 1 if num_ongoing else 0)
        mean = sum(number for _, number in self._seen) / len(self._seen)
        wanted = math.ceil(mean / self._target_ongoing)
        direction = (wanted > target) - (wanted < target)
        if direction != self._direction:
            self._direction, self._since = direction, now_s
        if not direction or now_s - self._since < self._delays_s[direction]:
            return target
        self._direction = 0
        lowest, highest = self._bounds
        return min(max(wanted, lowest, 1 if target > 1 else 0), highest)
