"""A model's generator in front of its stable version and, while there is one, its canary.

Requests are prepared for the stable version: its tokenizer, chat template and default sampling parameters. A canary
therefore has the same tokenizer and at least the same context. It is skipped while it cannot answer, so that it never
costs a request; what it fails counts against it.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from rayinfer.errors import NotReady, Unavailable
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import RequestOutput
from rayinfer.protocols import GenerationRequest, ModelDescription, ServiceStatus, TextGenerator
from rayinfer.routing.canary.judgement import VersionCounts, rollback_reason
from rayinfer.routing.canary.settings import CanarySettings
from rayinfer.routing.canary.split import is_in_share

JUDGE_EVERY_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Canary:
    """An active canary, and both versions' counts when it began."""

    settings: CanarySettings
    generator: TextGenerator
    canary_counts: VersionCounts
    stable_counts: VersionCounts


class VersionedGenerator:
    """A TextGenerator that sends a share of the requests to a canary, and all others to the stable version."""

    def __init__(
        self,
        name: str,
        stable: TextGenerator,
        metrics: ServiceMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._stable = stable
        self._metrics = metrics
        self._clock = clock
        self._canary: Canary | None = None
        self._judged_s = float("-inf")
        self.last_settings: CanarySettings | None = None  # of the active canary, or of one that was rolled back
        self.rolled_back = ""  # why the last canary was, until another begins

    @property
    def share(self) -> float:
        """Share that goes to the canary now: 0 without one, and after it was rolled back."""
        return 0.0 if self._canary is None else self._canary.settings.share

    def start(self, settings: CanarySettings, canary: TextGenerator) -> None:
        """Send a share to a canary; counts begin anew."""
        self.stop()
        self.last_settings, self.rolled_back = settings, ""
        counts = self._metrics.snapshot().models
        self._canary = Canary(
            settings=settings,
            generator=canary,
            canary_counts=VersionCounts.of(counts.get(settings.model)),
            stable_counts=VersionCounts.of(counts.get(self._name)),
        )
        self._metrics.set_canary_share(self._name, settings.model, settings.share)

    def stop(self) -> None:
        """Send every request to the stable version again."""
        self.last_settings, self.rolled_back = None, ""
        if self._canary is not None:
            self._metrics.set_canary_share(self._name, self._canary.settings.model, 0.0)
            self._canary = None

    def roll_back(self, reason: str) -> None:
        """Stop the active canary; the same settings do not start it again."""
        settings = self.last_settings
        self.stop()
        self.last_settings, self.rolled_back = settings, reason

    def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield the outputs of the version that the request falls to."""
        return self._choose(request).generate(request)

    async def compile_grammar(self, spec: StructuredOutputsParams) -> bool:
        """Have an engine of the stable version compile a grammar; raises InvalidParameter for one that it refuses."""
        return await self._stable.compile_grammar(spec)

    def describe(self) -> ModelDescription:
        """Describe the stable version; raises NotReady."""
        return self._stable.describe()

    def status(self) -> ServiceStatus:
        """Return the stable version's readiness and load; the canary has its own name."""
        return self._stable.status()

    def overload(self) -> Unavailable | None:
        """Return why every request would be rejected now."""
        return self._stable.overload()

    def _choose(self, request: GenerationRequest) -> TextGenerator:
        if self._canary is not None:
            self._judge(self._canary)
        if (canary := self._canary) is None:
            return self._stable
        key = request.tenant if canary.settings.by == "tenant" else request.request_id
        if not is_in_share(self._name, key, canary.settings.share) or not self._can_answer(canary.generator):
            return self._stable
        return canary.generator

    def _can_answer(self, canary: TextGenerator) -> bool:
        """Return whether a canary takes requests as long as the stable version's."""
        if canary.overload() is not None or not canary.status().ready:
            return False
        try:
            return canary.describe().max_model_len >= self._stable.describe().max_model_len
        except NotReady:
            return False

    def _judge(self, canary: Canary) -> None:
        """Roll the canary back if it fails more, or answers later, than its settings allow."""
        if self._clock() - self._judged_s < JUDGE_EVERY_S:
            return
        self._judged_s = self._clock()
        counts = self._metrics.snapshot().models
        reason = rollback_reason(
            canary.settings,
            VersionCounts.of(counts.get(canary.settings.model)).since(canary.canary_counts),
            VersionCounts.of(counts.get(self._name)).since(canary.stable_counts),
        )
        if reason:
            logger.error("the canary %r of %r is rolled back: %s", canary.settings.model, self._name, reason)
            self.roll_back(reason)
