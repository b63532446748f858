"""Report of one engine to its routers and its replica."""

from dataclasses import dataclass

from rayinfer.outputs import EngineStats


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReport:
    """Statistics and liveness of an engine at one moment."""

    stats: EngineStats
    silent_s: float  # how long ago its loop last came round
    silent_limit_s: float  # from when on that is too long

    @property
    def is_stuck(self) -> bool:
        """Return whether the engine has been in one step for longer than any should take."""
        return self.silent_s > self.silent_limit_s
