"""Comparison of two versions' error rates and TTFT since the canary began, by the router's own counts."""

from dataclasses import dataclass

from rayinfer.metrics.request_timer import ModelCounts
from rayinfer.routing.canary.settings import CanarySettings


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """Counts of one version at one moment, or between two."""

    num_finished: int = 0
    num_errors: int = 0
    num_first_tokens: int = 0
    first_tokens_s: float = 0.0  # sum of their latencies

    @classmethod
    def of(cls, counts: ModelCounts | None) -> "VersionCounts":
        """Read a model's counts; None stands for a model without requests so far."""
        if counts is None:
            return cls()
        finished = counts.finished
        return cls(sum(finished.values()), finished["error"], sum(counts.first_token.counts), counts.first_token.total)

    def since(self, earlier: "VersionCounts") -> "VersionCounts":
        """Return what was counted after an earlier moment."""
        return VersionCounts(
            self.num_finished - earlier.num_finished,
            self.num_errors - earlier.num_errors,
            self.num_first_tokens - earlier.num_first_tokens,
            self.first_tokens_s - earlier.first_tokens_s,
        )

    @property
    def error_rate(self) -> float:
        """Share of the finished requests that failed; 0 without any."""
        return self.num_errors / self.num_finished if self.num_finished else 0.0

    @property
    def mean_ttft_s(self) -> float:
        """Mean time to the first token in seconds; 0 without any."""
        return self.first_tokens_s / self.num_first_tokens if self.num_first_tokens else 0.0


def rollback_reason(settings: CanarySettings, canary: VersionCounts, stable: VersionCounts) -> str:
    """Return why a canary has to be rolled back; "" while it does not."""
    limit = settings.max_error_rate
    if limit is not None and canary.num_finished >= settings.min_requests:
        rate = canary.error_rate
        if rate > stable.error_rate + limit:
            return f"{rate:.1%} of {canary.num_finished} requests failed, of the stable version {stable.error_rate:.1%}"
    ratio, enough = settings.max_ttft_ratio, settings.min_requests
    if ratio is not None and min(canary.num_first_tokens, stable.num_first_tokens) >= enough:
        mean_s, stable_s = canary.mean_ttft_s, stable.mean_ttft_s
        if mean_s > ratio * stable_s:
            num, mean_ms, stable_ms = canary.num_first_tokens, mean_s * 1000, stable_s * 1000
            return f"mean TTFT {mean_ms:.0f} ms over {num} requests, stable {stable_ms:.0f} ms"
    return ""
