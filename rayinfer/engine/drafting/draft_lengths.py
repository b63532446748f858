"""Lengths of drafts: each row's by its running acceptance, all of them by the number of lines in the step."""

import numpy as np
import numpy.typing as npt

from rayinfer.sampling_params import MAX_DRAFT_TOKENS, Speculation

OFF, AUTO, ENGINE_DEFAULT = 0, -1, -2  # modes of a row; a positive one is the number of tokens to draft

# Acceptance from which one more line pays, by the lines of the step with it: the first four cost what one costs, as the
# weights are read once. Computed from the cost of CPU kernels by rows, not measured as a whole; interpolated between.
_LINES = (4, 5, 8, 16, 64)
_BREAK_EVEN = (0.0, 0.2, 0.3, 0.5, 0.8)
MOST_LINES = _LINES[-1]  # more never pay

_FIRST_ACCEPTANCE = 0.7  # of a row without experience, which counts as much as:
_FIRST_TRIALS = 2.0
_KEPT = 0.9  # of the experience, after each draft
_KEPT_IDLE = 0.98  # after a step in which a row drafted nothing, so that it tries again in time

# With async scheduling a row that drafts is in every second step, so it loses a token for each draft. A draft makes up
# for that if one of its tokens is accepted, which is likely from this acceptance on.
_WORTH_WAITING = 0.5
_RETRY_STEPS = 8  # after which a row that had no draft waits once more

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def speculation_mode(speculation: Speculation | None) -> int:
    """Return the number that a row of the batch table has for a setting."""
    if isinstance(speculation, int):
        return speculation
    return {None: ENGINE_DEFAULT, "auto": AUTO, "off": OFF}[speculation]


class DraftLengths:
    """Chooses which rows draft how many tokens, from what became of earlier drafts."""

    def __init__(self, num_rows: int) -> None:
        self._accepted = np.zeros(num_rows)  # draft tokens, older ones counting less
        self._tried = np.zeros(num_rows)
        self._num_idle = np.zeros(num_rows, np.int64)  # steps since the last draft
        self._generations = np.full(num_rows, -1, np.int64)

    def choose(
        self,
        rows: Int64Array,
        modes: Int64Array,
        longest: Int64Array,
        *,
        generations: Int64Array,
        num_lines: int,
        num_more: int,
    ) -> Int64Array:
        """Return the number of tokens that each row may draft, beside `num_lines` that the step has anyway.

        `longest` bounds each row's and `num_more` all together; a row of another generation is another request's.
        """
        self._forget(rows, generations)
        lengths = np.arange(1, MAX_DRAFT_TOKENS + 1)[:, np.newaxis]  # [lengths, rows] from here on
        is_possible = (lengths <= longest) & ((modes == AUTO) | (lengths <= modes))
        chances = np.where(modes == AUTO, self.acceptance(rows) ** lengths, 1.0)  # that the token is accepted
        chances[~is_possible] = -1.0
        # The likeliest first, of equals those that come first in their drafts.
        order = np.argsort(-chances, axis=None, kind="stable")[: max(num_more, 0)]
        lines = num_lines + 1 + np.arange(len(order))
        is_paying = (chances.ravel()[order] >= np.interp(lines, _LINES, _BREAK_EVEN)) & (lines <= MOST_LINES)
        num_paying = len(order) if is_paying.all() else int(is_paying.argmin())
        chosen = np.bincount(order[:num_paying] % len(rows), minlength=len(rows))
        self._fade(rows[chosen == 0])
        return chosen

    def are_worth_waiting(self, rows: Int64Array, *, generations: Int64Array, num_lines: int) -> BoolArray:
        """Return the mask of rows that had better wait for their token in flight, to draft behind it.

        `num_lines` are those of the step that they would be in; more of them leave less to drafts.
        """
        self._forget(rows, generations)
        is_due = self._num_idle[rows] % _RETRY_STEPS == 0
        least = max(_WORTH_WAITING, float(np.interp(num_lines + 1, _LINES, _BREAK_EVEN)))
        waits: BoolArray = is_due & (self.acceptance(rows) >= least) & (num_lines < MOST_LINES)
        return waits

    def pass_over(self, rows: Int64Array) -> None:
        """Record a step of rows that did not wait."""
        self._num_idle[rows] += 1
        self._fade(rows)

    def record_drafts(self, rows: Int64Array, has_draft: BoolArray) -> None:
        """Record which of the rows that could draft in a step have a draft."""
        self._num_idle[rows] = np.where(has_draft, 0, self._num_idle[rows] + 1)

    def observe(self, rows: Int64Array, num_drafts: Int64Array, num_accepted: Int64Array) -> None:
        """Record what became of the rows' drafts."""
        self._accepted[rows] = _KEPT * self._accepted[rows] + num_accepted
        self._tried[rows] = _KEPT * self._tried[rows] + np.minimum(num_accepted + 1, num_drafts)

    def acceptance(self, rows: Int64Array) -> npt.NDArray[np.float64]:
        """Return the share of tried draft tokens that were accepted lately."""
        accepted: npt.NDArray[np.float64] = self._accepted[rows] + _FIRST_ACCEPTANCE * _FIRST_TRIALS
        return accepted / (self._tried[rows] + _FIRST_TRIALS)

    def _fade(self, rows: Int64Array) -> None:
        self._accepted[rows] *= _KEPT_IDLE
        self._tried[rows] *= _KEPT_IDLE

    def _forget(self, rows: Int64Array, generations: Int64Array) -> None:
        new = rows[self._generations[rows] != generations]
        self._accepted[new] = self._tried[new] = 0.0
        self._num_idle[new] = 0
        self._generations[rows] = generations
