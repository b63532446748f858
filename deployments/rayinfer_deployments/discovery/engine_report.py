"""Report of one engine to its routers and its replica."""

from dataclasses import dataclass

from rayinfer.outputs import EngineStats


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReport:
    """Statistics and liveness of an engine at one moment."""

    stats: EngineStats
    stalled_s: float  # since the last iteration of its loop
    stall_limit_s: float  # above which its step counts as stuck

    @property
    def is_stuck(self) -> bool:
        """Return whether the engine has been in one step for longer than any should take."""
        return self.stalled_s > self.stall_limit_s
