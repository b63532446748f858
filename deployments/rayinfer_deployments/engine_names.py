"""How the actors of engines are called, from which their places are read."""

from dataclasses import dataclass

ENGINE_PREFIX = "rayinfer-engine-"  # then the replica that owns the engine
RANK_MARK = "-rank-"  # then which, of the processes beyond an engine's first, whose name is the engine's


@dataclass(frozen=True, kw_only=True, slots=True)
class RankName:
    """Which rank of which engine an actor is."""

    engine: str
    rank: int

    @staticmethod
    def of(actor_name: str) -> "RankName":
        """Take an actor's name apart."""
        engine, _, rank = actor_name.partition(RANK_MARK)
        return RankName(engine=engine, rank=int(rank or 0))

    def __str__(self) -> str:
        """Give the actor's name."""
        return f"{self.engine}{RANK_MARK}{self.rank}" if self.rank else self.engine
