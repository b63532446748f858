"""Protocol of drafters: what a guess is made from, and what it is."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rayinfer.grammars.spec import StructuredOutputsParams


class DraftRow(NamedTuple):
    """A running request whose next tokens are to be guessed."""

    row: int  # of the batch
    request: object  # that the row belongs to: rows are reused, so state by row is valid for this object only
    token_ids: npt.NDArray[np.int32]  # prompt and output so far, valid during the call only
    prompt_len: int
    limit: int  # the most tokens that are wanted, at least 1
    grammar: StructuredOutputsParams | None = None
    salt: bytes = b""  # texts of others with the same one may be drafted from


class Drafter(Protocol):
    """Proposes tokens that may follow; nothing but speed depends on them."""

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        """Return for each row up to `limit` token ids of the model's vocabulary, in order; none where it knows none."""
        ...
