"""Counters of LoRA adapters' requests, bounded in number."""

from dataclasses import dataclass, field
from typing import get_args

from rayinfer.outputs import FinishReason

MAX_ADAPTERS = 200  # each has a series for every way to end
OTHER_ADAPTERS = "(other)"


@dataclass(slots=True)
class AdapterCounts:
    """Counts of one router for one adapter of a model."""

    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(FinishReason), 0))


def counts_of_adapter(adapters: dict[tuple[str, str], AdapterCounts], model: str, adapter: str) -> AdapterCounts:
    """Return an adapter's counts; beyond `MAX_ADAPTERS` a model's new ones share one."""
    if (model, adapter) not in adapters and len(adapters) >= MAX_ADAPTERS:
        adapter = OTHER_ADAPTERS
    return adapters.setdefault((model, adapter), AdapterCounts())
