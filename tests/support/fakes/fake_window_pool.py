"""The window pool of a FakeExecutor: what lies in each page, and whether sliding-window layers would read it there."""

from collections.abc import Sequence

import numpy as np

from rayinfer.engine.plan.step_plan import Int32Array, StepPlan

NOTHING = -1


class FakeWindowPool:
    """Tokens and positions by slot of the window pool."""

    def __init__(self, num_pages: int, block_size: int, window: int) -> None:
        self._pages = np.full((num_pages, block_size, 2), NOTHING, np.int64)
        self._block_size, self._window = block_size, window

    def write(self, plan: StepPlan, token_ids: Int32Array) -> None:
        """Put a step's tokens in their slots."""
        slots = plan.window_slot_mapping
        assert slots is not None
        assert slots.min() >= 0, "a token has no slot"
        assert len(set(slots.tolist())) == plan.num_tokens, "two tokens of one step share a slot"
        self._slots[slots, 0] = token_ids
        self._slots[slots, 1] = plan.positions

    def reads(self, plan: StepPlan, i: int, context: Sequence[int]) -> bool:
        """Return whether request i finds all that its tokens of this step see, the tokens of `context`."""
        assert plan.window_tables is not None
        first = max(0, int(plan.positions[plan.cu_seqlens_q[i]]) - self._window + 1)
        positions = np.arange(first, plan.seq_lens[i])
        pages = plan.window_tables[i][positions // self._block_size].astype(np.int64)
        found = self._slots[pages * self._block_size + positions % self._block_size]
        return bool((found[:, 1] == positions).all()) and found[:, 0].tolist() == list(context[first:])

    def keep_only(self, pages: Sequence[int]) -> None:
        """Forget all other pages."""
        is_kept = np.isin(np.arange(len(self._pages)), list(pages))
        self._pages[~is_kept] = NOTHING

    @property
    def _slots(self) -> np.ndarray:
        return self._pages.reshape(-1, 2)
