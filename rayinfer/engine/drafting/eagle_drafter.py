"""Drafter by an EAGLE-3 head: it guesses on from hidden states that the model computed of known tokens."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from rayinfer.engine.drafting.draft_batch import attention_batch
from rayinfer.engine.drafting.draft_rows import DraftRows
from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.models.eagle3 import Eagle3Head

MOST_UNREAD = 2048  # states of a row that has not drafted yet; older ones are forgotten

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _States:
    """States of a row's tokens that the head has not read; it counts positions from the first that it ever has."""

    base: int = 0  # position in the request of the head's first
    first: int = 0  # the head's position of parts[0]
    parts: list[torch.Tensor] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + sum(map(len, self.parts))

    def cut(self, end: int) -> None:
        """Keep those before a position of the head."""
        kept, left = [], end - self.first
        for part in self.parts:
            if left > 0:
                kept.append(part[:left])
            left -= len(part)
        self.parts = kept

    def take(self, end: int) -> torch.Tensor:
        """Remove and return those before a position of the head, at least one."""
        joined = torch.cat(self.parts)
        count = end - self.first
        self.parts = [joined[count:]] if count < len(joined) else []
        self.first = end
        return joined[:count]


@dataclass(frozen=True, slots=True)
class _Part:
    """Places of a row that a step of the head computes: each has a state, and the token behind it."""

    index: int  # of the row among those that draft
    row: int
    start: int  # the head's position of the first
    token_ids: npt.NDArray[np.int32]
    states: torch.Tensor  # [num_tokens, hidden_size]
    is_known: bool  # with it all known tokens are read, so that the next one is a draft

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class EagleDrafter:
    """Drafts by the head's likeliest token behind each state, and then behind its own.

    `observe` gets the states of each step of the model. Those of tokens that were found in the prefix cache, or were
    forgotten, are never read: the head sees the tokens behind them alone, which costs acceptance.
    """

    def __init__(
        self,
        head: Eagle3Head,
        embed: Callable[[torch.Tensor], torch.Tensor],
        rows: DraftRows,
        *,
        longest_sequence: int,
        max_step_tokens: int,
        hold_cores: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.head: Eagle3Head | None = head
        self.embed = embed
        self._rows = rows
        self._states: dict[int, _States] = {}
        self._longest = longest_sequence
        self._max_step_tokens = max_step_tokens
        self._hold_cores = hold_cores

    def use(self, head: Eagle3Head | None) -> None:
        """Draft with this head from now on; None: not at all, and forget all rows."""
        self.head = head
        if head is None:
            self.forget()

    def forget(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._states.clear()

    def observe(
        self,
        new_rows: Iterable[int],
        rows: Sequence[int],
        ends: Sequence[int],
        counts: Sequence[int],
        read: torch.Tensor,
    ) -> None:
        """Keep the states of a step: of each row `counts` tokens up to a position; `new_rows` are other requests'."""
        for row in new_rows:
            self._rows.free(row)
            self._states.pop(row, None)
        if self.head is None:
            return
        try:
            with torch.inference_mode():
                reduced = self.head.reduce(read)
        except Exception:
            _logger.warning("the EAGLE head failed; it forgets what it has read", exc_info=True)
            self.forget()
            return
        at = 0
        for row, end, count in zip(rows, ends, counts, strict=True):
            self._keep(row, end - count, reduced[at : at + count].clone())
            at += count

    def _keep(self, row: int, start: int, states: torch.Tensor) -> None:
        known = self._states.get(row)
        if known is None or not known.first <= start - known.base <= known.end or known.first > self._num_read(row):
            self._rows.free(row)  # a gap: the head begins anew
            self._states[row] = _States(start, 0, [states])
            return
        known.cut(start - known.base)
        known.parts.append(states)
        if (surplus := known.end - known.first - MOST_UNREAD) > 0:
            self._rows.free(row)
            self._states[row] = _States(known.base + known.first + surplus, 0, [torch.cat(known.parts)[surplus:]])

    def _num_read(self, row: int) -> int:
        return int(self._rows.num_tokens[row])

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        """See Drafter."""
        if self.head is None or not rows:
            return [() for _ in rows]
        try:
            with self._hold_cores(), torch.inference_mode():
                return self._propose(self.head, rows)
        except Exception:
            _logger.warning("the EAGLE head failed; the step has no drafts of it", exc_info=True)
            self.forget()
            return [() for _ in rows]

    def _propose(self, head: Eagle3Head, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        drafts: list[list[int]] = [[] for _ in rows]
        parts = self._unread(rows)
        while parts:
            hidden, token_ids = self._guess(head, parts)
            following: list[_Part] = []
            for number, (part, token_id) in enumerate(zip(parts, token_ids, strict=True)):
                if not part.is_known:
                    continue
                draft, each = drafts[part.index], rows[part.index]
                draft.append(token_id)
                if len(draft) < each.limit and part.end < self._longest:
                    state = hidden[number : number + 1]
                    following.append(_Part(part.index, part.row, part.end, np.array([token_id], np.int32), state, True))
            parts = following
        return list(drafts)

    def _unread(self, rows: Sequence[DraftRow]) -> list[_Part]:
        """Return what the head has yet to read of rows that have states and memory, the shortest first."""
        kept = {each.row for each in rows}
        unread = []
        for index, each in enumerate(rows):
            states = self._states.get(each.row)
            if states is None or states.first != self._num_read(each.row):
                continue
            end = len(each.token_ids) - 1 - states.base  # the last token has no state yet
            if not states.first < end <= min(states.end, self._longest):
                continue
            if self._rows.reserve(each.row, min(end + each.limit, self._longest), kept):
                unread.append((end - states.first, index, states))
        parts, num_left = [], self._max_step_tokens
        for count, index, states in sorted(unread, key=lambda each: each[:2]):
            taken = min(count, num_left)
            if not taken:
                break
            each, start = rows[index], states.first
            first = states.base + start + 1
            token_ids = each.token_ids[first : first + taken]
            parts.append(_Part(index, each.row, start, token_ids, states.take(start + taken), taken == count))
            self._rows.num_tokens[each.row] = start + taken
            num_left -= taken
        return parts

    def _guess(self, head: Eagle3Head, parts: Sequence[_Part]) -> tuple[torch.Tensor, list[int]]:
        """Compute the parts; returns the hidden state of the last place of each, and the likeliest token behind it."""
        batch = attention_batch(
            self._rows,
            np.array([part.row for part in parts]),
            np.array([part.start for part in parts]),
            np.array([len(part.token_ids) for part in parts]),
        )
        token_ids = torch.from_numpy(np.concatenate([part.token_ids for part in parts]))
        states = torch.cat([part.states for part in parts])
        embed = self.embed if head.embed_tokens is None else head.embed_tokens.forward
        hidden = head.forward(embed(token_ids), states, batch)[batch.cu_seqlens_q[1:].long() - 1]
        likeliest: list[int] = head.likeliest(hidden).tolist()
        return hidden, likeliest
