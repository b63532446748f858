"""The models that a service is broken with, and the load that suits them on two cores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.tiny_models.tiny_checkpoints import make_tiny_llama

SERVED_NAME = "subject"  # under which clients ask for whichever it is
MAX_LEN = 8192  # of a prompt and its answer, as the embedded model has it


@dataclass(frozen=True, kw_only=True)
class FaultModel:
    """A model, and how much of it two engines of one thread each can do."""

    settings: dict[str, Any]
    num_tokens: int  # of an answer
    num_streams: int  # side by side
    whole_per_s: float  # answers that are not streamed
    token_s: float  # about how long each takes under that load
    step_s: str | None = None  # what each step takes longer than it does

    def args(self, **changes: Any) -> dict[str, Any]:
        """Settings of two engines, but for what is given."""
        return {"name": SERVED_NAME, "dtype": "float32", "num_replicas": 2} | self.settings | changes


def tiny_model(folder: Path) -> FaultModel:
    """A random model of two layers, whose steps take as long as a real one's but leave the cores to new processes."""
    model = make_tiny_llama(folder, max_position_embeddings=MAX_LEN)
    settings = {"model": str(model), "num_kv_blocks": 4096}
    return FaultModel(settings=settings, num_tokens=64, num_streams=8, whole_per_s=4.0, token_s=0.02, step_s="0.02")


def embedded_model() -> FaultModel:
    """The model that `rayinfer serve` serves by default; two engines have all of two cores to do."""
    settings = {"model": "smollm2-135m", "num_kv_blocks": 1024}
    return FaultModel(settings=settings, num_tokens=32, num_streams=8, whole_per_s=1.0, token_s=0.1)
