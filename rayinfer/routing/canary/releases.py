"""All models' canaries in one router, as the limits want them."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.protocols import TextGenerator
from rayinfer.routing.canary.settings import CanarySettings
from rayinfer.routing.canary.versioned_generator import VersionedGenerator
from rayinfer.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryState:
    """A canary release in one router, for operators."""

    model: str
    canary: str
    share: float  # in force
    problem: str = ""  # why it did not begin, or was rolled back


class CanaryReleases:
    """The versioned generators of a router's models."""

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics
        self._generators: dict[str, VersionedGenerator] = {}
        self._stable: dict[str, TextGenerator] = {}
        self._tokenizers: dict[str, Tokenizer] = {}
        self._wanted: Mapping[str, CanarySettings] = {}
        self._problems: dict[str, str] = {}
        self._applying = asyncio.Lock()

    def add(self, name: str, generator: TextGenerator, tokenizer: Tokenizer) -> VersionedGenerator:
        """Add a model that generates text; returns what its requests go to. `apply` follows."""
        versioned = self._generators[name] = VersionedGenerator(name, generator, self._metrics)
        self._stable[name], self._tokenizers[name] = generator, tokenizer
        return versioned

    def generator(self, name: str) -> VersionedGenerator:
        """Return what a model's requests go to."""
        return self._generators[name]

    async def apply(self, wanted: Mapping[str, CanarySettings] | None = None) -> None:
        """Start, change and stop canaries as wanted; None: as wanted before, after models were added."""
        if wanted is not None:
            self._wanted = wanted
        async with self._applying:
            wanted = self._wanted
            self._problems = {}
            for name, versioned in self._generators.items():
                settings = wanted.get(name)
                if settings is None:
                    versioned.stop()
                elif problem := await self._mismatch(name, settings.model):
                    versioned.stop()
                    self._problems[name] = problem
                    logger.warning("no canary of %r: %s", name, problem)
                elif versioned.last_settings != settings:  # one that was rolled back stays so
                    versioned.start(settings, self._stable[settings.model])

    def states(self) -> list[CanaryState]:
        """Return the wanted canaries and what became of them."""
        states = []
        for name, settings in self._wanted.items():
            versioned = self._generators.get(name)
            problem = self._problems.get(name, "") if versioned else f"{name!r} is not served, or generates no text"
            share = 0.0
            if versioned is not None:
                share, problem = versioned.share, problem or versioned.rolled_back
            states.append(CanaryState(model=name, canary=settings.model, share=share, problem=problem))
        return states

    async def _mismatch(self, name: str, canary: str) -> str:
        """Return why a model cannot be the canary of another; "" where it can."""
        if canary not in self._generators:
            return f"{canary!r} is not served, or generates no text"
        first, second = self._tokenizers[name], self._tokenizers[canary]
        if not await asyncio.to_thread(first.is_equal_to, second):
            return f"{canary!r} has another tokenizer than {name!r}"
        return ""
