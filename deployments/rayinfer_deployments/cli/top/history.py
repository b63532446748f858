"""Rates and percentiles of a model from the samples of `GET /live`, over the last ten seconds."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WINDOW = 10
KEPT = 120
MAX_EVENTS = 8

Sample = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that has happened to a model, with its time since 1970."""

    time_s: float
    text: str
    style: str


@dataclass(slots=True)
class ModelHistory:
    """Samples of one model, the latest last."""

    samples: deque[tuple[float, Sample]] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # generated tokens per second
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))

    def add(self, time_s: float, sample: Sample) -> None:
        """Add a sample; one that is not newer than the last is ignored."""
        if self.samples:
            last_s, last = self.samples[-1]
            if time_s <= last_s:
                return
            self._note_changes(time_s, last, sample)
            grown = max(0, sample["generation_tokens"] - last["generation_tokens"])
            self.rates.append(grown / (time_s - last_s))
        self.samples.append((time_s, sample))

    @property
    def latest(self) -> Sample:
        """The latest sample; there must be one."""
        return self.samples[-1][1]

    def rate(self, name: str) -> float | None:
        """Return how much a counter grew per second; None before there are two samples."""
        (first_s, first), (last_s, last) = self.samples[0], self.samples[-1]
        return None if last_s <= first_s else max(0, last[name] - first[name]) / (last_s - first_s)

    def percentiles(self, name: str) -> list[float | None]:
        """Estimate the 50th and the 95th percentile of what a histogram got, in seconds."""
        before, now = self.samples[0][1][name]["counts"], self.latest[name]
        counts = [max(0, count - (before[index] if before else 0)) for index, count in enumerate(now["counts"])]
        return [percentile(now["bounds"], counts, share) for share in (0.5, 0.95)]

    def hit_share(self) -> float | None:
        """Return the share of prompt tokens that the prefix cache had; None without prompts."""
        first, last = self.samples[0][1], self.latest
        prompts = last["prompt_tokens"] - first["prompt_tokens"]
        return (last["cached_prompt_tokens"] - first["cached_prompt_tokens"]) / prompts if prompts > 0 else None

    def accepted_share(self) -> float | None:
        """Return the share of draft tokens that engines accepted, of those that are there still; None without any."""
        first, last = self.samples[0][1]["engines"], self.latest["engines"]
        drafted = accepted = 0
        for name, now in last.items():
            before = first.get(name, {})
            drafted += max(0, now.get("draft_tokens", 0) - before.get("draft_tokens", 0))
            accepted += max(0, now.get("accepted_draft_tokens", 0) - before.get("accepted_draft_tokens", 0))
        return accepted / drafted if drafted else None

    def _note_changes(self, time_s: float, before: Sample, now: Sample) -> None:
        def note(text: str, style: str) -> None:
            self.events.append(Event(time_s=time_s, text=text, style=style))

        for engine in before["engines"].keys() - now["engines"].keys():
            note(f"engine {engine} is gone", "red")
        for engine, stats in now["engines"].items():
            known = before["engines"].get(engine)
            if known is None:
                note(f"engine {engine} joined", "green")
            elif known["state"] != stats["state"]:
                note(f"engine {engine} is {stats['state']}", "yellow")
        if (migrated := now["migrations"] - before["migrations"]) > 0:
            note(f"{migrated} stream{'' if migrated == 1 else 's'} migrated", "yellow")
        known_s = before["scaling"][-1]["time_s"] if before.get("scaling") else 0.0
        for each in now.get("scaling", ()):
            if each["time_s"] > known_s:
                note(f"{each['before']} to {each['after']} engines: {each['reason']}", "yellow")


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Interpolate within the bucket that holds this share; the last bucket counts as its lower bound."""
    total, below = sum(counts), 0
    if not total:
        return None
    for index, count in enumerate(counts):
        if below + count >= share * total:
            low = bounds[index - 1] if index else 0.0
            if index >= len(bounds):
                return low
            return low + (bounds[index] - low) * ((share * total - below) / count if count else 1.0)
        below += count
    return None
