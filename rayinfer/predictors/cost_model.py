"""Model of a predictor's step time: seconds = base + per_unit x cost, fitted to measured steps."""

from collections import deque

NUM_STEPS = 64  # the latest ones, which the model is fitted to
PROBE_WEIGHT = 0.05  # of each probe, relative to a step; probes separate base and slope where all steps have one cost
FEWEST_STEPS = 2


class CostModel:
    """Fits steps' times, and derives the budget of a step from a target for its time.

    A weighted least-squares line, with base and slope at least 0. Weights are 1 / seconds^2, so that relative errors
    count, and a step that lost its core counts little. Costs are tokens, or what images and tensors count as.
    """

    def __init__(self, *, target_step_s: float, max_cost: int) -> None:
        self.base_s = 0.0  # of a step, whatever its cost
        self.per_unit_s = 0.0
        self._target_step_s = target_step_s
        self._max_cost = max_cost
        self._steps: deque[tuple[float, float]] = deque(maxlen=NUM_STEPS)  # cost, seconds
        self._probes: list[tuple[float, float]] = []

    @property
    def is_known(self) -> bool:
        """Whether enough steps were measured."""
        return len(self._steps) + len(self._probes) >= FEWEST_STEPS

    @property
    def budget(self) -> int:
        """The largest cost of a step that should not take longer than the target; at least 1.

        Where the base alone takes half of the target, it is what takes as long as the base: smaller steps would spend
        most of their time on it.
        """
        if not self.is_known or self.per_unit_s <= 0:
            return self._max_cost
        affordable = max(self._target_step_s - self.base_s, self.base_s) / self.per_unit_s
        return max(1, min(int(affordable), self._max_cost))

    def seconds(self, cost: float) -> float:
        """Return the expected time of a step; 0 while it is unknown."""
        return self.base_s + self.per_unit_s * cost if self.is_known else 0.0

    def record_probe(self, cost: int, seconds: float) -> None:
        """Record a step of a chosen cost, measured before there are requests."""
        self._probes.append((cost, seconds))
        self._fit()

    def record(self, cost: int, seconds: float) -> None:
        """Record a step."""
        self._steps.append((cost, seconds))
        self._fit()

    def _fit(self) -> None:
        samples = [(cost, seconds, 1.0) for cost, seconds in self._steps]
        samples += [(cost, seconds, PROBE_WEIGHT) for cost, seconds in self._probes]
        weight = mean_cost = mean_s = 0.0
        weighted = [(cost, seconds, share / max(seconds, 1e-6) ** 2) for cost, seconds, share in samples]
        for cost, seconds, share in weighted:
            weight += share
            mean_cost += share * cost
            mean_s += share * seconds
        mean_cost, mean_s = mean_cost / weight, mean_s / weight
        covariance = sum(share * (cost - mean_cost) * (seconds - mean_s) for cost, seconds, share in weighted)
        variance = sum(share * (cost - mean_cost) ** 2 for cost, _, share in weighted)
        # Steps of a single cost say nothing of the base: then all of the time is taken as proportional to the cost.
        has_slope = variance > 1e-9 * weight * max(1.0, mean_cost**2)
        slope = max(0.0, covariance / variance) if has_slope else mean_s / max(mean_cost, 1.0)
        base = mean_s - slope * mean_cost
        if base < 0:
            base, slope = 0.0, _slope_through_zero(weighted)
        self.base_s, self.per_unit_s = base, slope


def _slope_through_zero(weighted: list[tuple[float, float, float]]) -> float:
    squares = sum(share * cost * cost for cost, _, share in weighted)
    return sum(share * cost * seconds for cost, seconds, share in weighted) / squares if squares else 0.0
