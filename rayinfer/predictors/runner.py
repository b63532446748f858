"""Interface of a predictor's runner: a batch of items to one array of numbers each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rayinfer.predictions import PredictionTask, PredictorDescription

NamedTensors = Mapping[str, npt.NDArray[Any]]
RunnerResult = npt.NDArray[np.float32] | dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunnerItem:
    """One item of a batch, tokenized or decoded: token ids, or pixels, or tensors."""

    task: PredictionTask
    token_ids: Sequence[int] = ()
    num_first_tokens: int = 0  # of a pair of texts: tokens of the first one, with the special ones around it
    pixels: npt.NDArray[Any] | None = None  # uint8 [height, width, 3]; float32 [3, height, width]: normalized already
    is_resized: bool = True  # pixels have the model's size, as engines decode images; false: any size
    tensors: NamedTensors = field(default_factory=dict)
    name: str = ""  # in errors; without one it is its number in the batch


class Runner(Protocol):
    """A loaded predictor, for one thread at a time.

    Items of a batch may be of different tasks, but of text, images or tensors only. Results do not depend on a batch.
    """

    @property
    def description(self) -> PredictorDescription:
        """Tasks of the predictor, and how its numbers are read."""
        ...

    @property
    def max_input_tokens(self) -> int:
        """Longest text, special tokens included; 0 where it takes no text."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids lie below it; 0 where it takes no text."""
        ...

    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """Compute the numbers of each item in their order, as PredictionOutput has them; of "infer" named tensors.

        Raises InvalidParameter for an item that cannot be computed; then none of the batch is.
        """
        ...

    def close(self) -> None:
        """Give the weights back."""
        ...
