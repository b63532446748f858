"""Names of engine actors, which encode the engine and the rank."""

from dataclasses import dataclass

ENGINE_PREFIX = "rayinfer-engine-"  # then the replica that owns the engine
RANK_MARK = "-rank-"  # then which, of the processes beyond an engine's first, whose name is the engine's


@dataclass(frozen=True, kw_only=True, slots=True)
class RankName:
    """Engine and rank in an actor's name."""

    engine: str
    rank: int

    @staticmethod
    def of(actor_name: str) -> "RankName":
        """Parse an actor's name."""
        engine, _, rank = actor_name.partition(RANK_MARK)
        return RankName(engine=engine, rank=int(rank or 0))

    def __str__(self) -> str:
        """Return the actor's name."""
        return f"{self.engine}{RANK_MARK}{self.rank}" if self.rank else self.engine
