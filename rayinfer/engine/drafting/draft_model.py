"""Drafter by a small model of the same tokenizer: its likeliest tokens, one after the other, for all rows at once."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from rayinfer.engine.drafting.draft_batch import attention_batch
from rayinfer.engine.drafting.draft_rows import DraftRows
from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.models.decoder import Decoder
from rayinfer_kernels import ops

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of a row that a step of the draft model computes."""

    index: int  # of the row among those that draft
    row: int
    start: int  # position of the first
    token_ids: npt.NDArray[np.int32]
    is_known: bool  # with it all of the row's tokens are, so that the next one is a draft

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class DraftModel:
    """Drafts with a model that first computes what it has not seen of a row: prompts too, in several calls if long.

    `decoder` is None while its memory is released. It has keys and values of its own by row. A draft that fails is
    none: nothing but speed depends on it.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: DraftRows,
        *,
        vocab_size: int,
        longest_sequence: int,
        max_step_tokens: int,
        hold_cores: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.decoder: Decoder | None = decoder
        self._rows = rows
        self._vocab_size = min(vocab_size, decoder.config.vocab_size)  # the rest of either is padding
        self._last_token_id = decoder.config.vocab_size - 1
        self._longest = longest_sequence
        self._max_step_tokens = max_step_tokens
        self._hold_cores = hold_cores

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        """See Drafter."""
        if self.decoder is None or not rows:
            return [() for _ in rows]
        try:
            with self._hold_cores(), torch.inference_mode():
                return self._propose(self.decoder, rows)
        except Exception:
            _logger.warning("the draft model failed; the step has no drafts of it", exc_info=True)
            self.forget()
            return [() for _ in rows]

    def use(self, decoder: Decoder | None) -> None:
        """Draft with this model from now on; None: not at all, and forget what is computed."""
        self.decoder = decoder
        if decoder is None:
            self.forget()

    def forget(self) -> None:
        """Forget what is computed."""
        self._rows.clear()

    def _propose(self, decoder: Decoder, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        drafts: list[list[int]] = [[] for _ in rows]
        limits = [min(each.limit, self._longest - len(each.token_ids) + 1) for each in rows]
        parts = self._unseen(rows, limits)
        while parts:
            token_ids = self._likeliest(decoder, parts)
            following: list[_Part] = []
            for part, token_id in zip(parts, token_ids, strict=True):
                if not part.is_known:
                    continue
                draft = drafts[part.index]
                draft.append(token_id)
                if len(draft) < limits[part.index]:
                    following.append(_Part(part.index, part.row, part.end, np.array([token_id], np.int32), True))
            parts = following
        return list(drafts)

    def _unseen(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> list[_Part]:
        """Return what is yet to be computed of rows that have memory, the shortest first, as much as one step may."""
        kept = {each.row for each in rows}
        unseen = []
        for index, each in enumerate(rows):
            num_tokens = len(each.token_ids)
            start = self._rows.keep_equal(each)
            if limits[index] > 0 and self._rows.reserve(each.row, num_tokens + limits[index] - 1, kept):
                unseen.append((num_tokens - start, index, start))
        parts, num_left = [], self._max_step_tokens
        for count, index, start in sorted(unseen):
            taken = min(count, num_left)
            if taken:
                token_ids = rows[index].token_ids[start : start + taken]
                parts.append(_Part(index, rows[index].row, start, token_ids, taken == count))
                num_left -= taken
        return parts

    def _likeliest(self, decoder: Decoder, parts: Sequence[_Part]) -> list[int]:
        """Compute the parts; returns the likeliest token behind each."""
        for part in parts:
            self._rows.record(part.row, part.start, part.token_ids)
        token_ids = np.minimum(np.concatenate([part.token_ids for part in parts]), self._last_token_id)
        batch = attention_batch(
            self._rows,
            np.array([part.row for part in parts]),
            np.array([part.start for part in parts]),
            np.array([len(part.token_ids) for part in parts]),
        )
        if len(token_ids) > len(parts):
            batch = replace(batch, outputs=ops.OutputTokens.last_of_each(batch.cu_seqlens_q))
        logits = decoder.logits(decoder.forward(torch.from_numpy(token_ids), batch))
        likeliest: list[int] = logits[:, : self._vocab_size].argmax(dim=-1).tolist()
        return likeliest
