"""Load of long prompts among short chats, and what its clients see."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rayinfer.benchmark.studies.autoscaling.trace import TracedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedLoad:
    """Chats and long prompts, so many of each, that arrive at random times."""

    duration_s: float = 60.0
    chats_per_s: float = 0.5
    chat_tokens: tuple[int, int] = (64, 64)  # of the prompt and of the answer
    long_per_s: float = 0.1
    long_tokens: tuple[int, int] = (1500, 32)
    seed: int = 1

    def requests(self) -> list[TracedRequest]:
        """Draw the arrivals, in their order."""
        draw = random.Random(self.seed)
        arrivals = []
        for per_s, (prompt_tokens, output_tokens) in (
            (self.chats_per_s, self.chat_tokens),
            (self.long_per_s, self.long_tokens),
        ):
            for _ in range(round(per_s * self.duration_s)):
                arrivals.append(TracedRequest(draw.uniform(0, self.duration_s), prompt_tokens, output_tokens))
        return sorted(arrivals)

    def is_long(self, request: TracedRequest) -> bool:
        """Return whether a request is one of the long prompts."""
        return request.prompt_tokens == self.long_tokens[0]


@dataclass(kw_only=True, slots=True)
class Seen:
    """Times that clients saw, and the tokens that they got."""

    chat_ttft_s: list[float] = field(default_factory=list)
    long_ttft_s: list[float] = field(default_factory=list)
    chat_gaps_s: list[float] = field(default_factory=list)  # between two tokens of a chat
    num_tokens: int = 0
    lasted_s: float = 0.0  # from the first arrival to the last token
    num_handovers: int = 0

    def add(self, other: "Seen") -> None:
        """Add what clients saw in another round."""
        self.chat_ttft_s += other.chat_ttft_s
        self.long_ttft_s += other.long_ttft_s
        self.chat_gaps_s += other.chat_gaps_s
        self.num_tokens += other.num_tokens
        self.lasted_s += other.lasted_s
        self.num_handovers += other.num_handovers


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of one arrangement of engines under the load; times in milliseconds."""

    how: str  # simulated, or measured
    arrangement: str
    chat_ttft_ms: tuple[float, float]  # median and 99th percentile
    chat_gap_ms: tuple[float, float, float]  # and the longest
    long_ttft_ms: tuple[float, float]
    tokens_per_s: float
    num_handovers: int
    same_tokens: bool | None = None  # as the first arrangement gave

    def row(self) -> tuple[object, ...]:
        """Return the row of the report's table."""
        same = {None: "", True: "yes", False: "NO"}[self.same_tokens]
        times = (*self.chat_ttft_ms, *self.chat_gap_ms, *self.long_ttft_ms)
        return (self.how, self.arrangement, *times, self.tokens_per_s, self.num_handovers, same)


HEADS = (
    "how",
    "engines",
    "chat TTFT p50 ms",
    "p99",
    "chat token gap p50 ms",
    "p99",
    "longest",
    "long TTFT p50 ms",
    "p99",
    "tok/s",
    "handovers",
    "same tokens",
)


def outcome(how: str, arrangement: str, seen: Seen, *, same_tokens: bool | None = None) -> Outcome:
    """Summarize what clients saw."""
    return Outcome(
        how=how,
        arrangement=arrangement,
        chat_ttft_ms=(_ms(seen.chat_ttft_s, 0.5), _ms(seen.chat_ttft_s, 0.99)),
        chat_gap_ms=(_ms(seen.chat_gaps_s, 0.5), _ms(seen.chat_gaps_s, 0.99), _ms(seen.chat_gaps_s, 1.0)),
        long_ttft_ms=(_ms(seen.long_ttft_s, 0.5), _ms(seen.long_ttft_s, 0.99)),
        tokens_per_s=round(seen.num_tokens / seen.lasted_s, 1) if seen.lasted_s else 0.0,
        num_handovers=seen.num_handovers,
        same_tokens=same_tokens,
    )


def _ms(seconds: Sequence[float], quantile: float) -> float:
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    return round(1e3 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))], 1)
