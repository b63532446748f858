"""Sizes of a hybrid KV cache: window pages that rows and steps need, and the division of memory between both pools."""

from dataclasses import dataclass

from rayinfer.kv_cache.hybrid_blocks import num_blocks_seen

# Blocks for each window page. Four suit requests that are four times as long as the window, and leave pages to cached
# prefixes; two are for many short requests in little memory.
_MOST_BLOCKS, _FEWEST_BLOCKS = 4, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSize:
    """Sizes that decide how many window pages can be in use: rows, and tokens whose step is in flight or planned."""

    num_rows: int
    num_tokens: int  # of all steps in flight together
    window: int
    block_size: int

    @property
    def pages_of_row(self) -> int:
        """Pages that a row holds at most, without those of tokens in flight."""
        return num_blocks_seen(self.window, self.block_size) + 2  # one more at each end, that it sees a part of

    @property
    def pages_of_step(self) -> int:
        """Pages of the tokens in flight, beside those of rows."""
        return -(-self.num_tokens // self.block_size)

    @property
    def most_pages(self) -> int:
        """Pages that are in use at most."""
        return self.num_rows * self.pages_of_row + self.pages_of_step


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSizes:
    """Blocks with the keys and values of full-attention layers, and pages with those of sliding-window layers."""

    num_blocks: int
    num_window_pages: int


def divide_pool(num_whole_blocks: int, *, num_full_layers: int, num_sliding_layers: int, step: StepSize) -> PoolSizes:
    """Divide the memory of so many blocks of all layers; a layer's part of a block takes the same everywhere.

    There are two to four blocks for each page: within these bounds as many pages as can be in use. Where the tokens of
    a step alone would take half of them, each block has its page, as without division.
    """
    undivided = PoolSizes(num_blocks=num_whole_blocks, num_window_pages=num_whole_blocks)
    if not num_sliding_layers:
        return undivided
    if num_full_layers:
        num_parts = num_whole_blocks * (num_full_layers + num_sliding_layers)
        fewest, most = (
            num_parts // (ratio * num_full_layers + num_sliding_layers) for ratio in (_MOST_BLOCKS, _FEWEST_BLOCKS)
        )
        num_pages = max(fewest, min(step.most_pages, most))
        num_blocks = (num_parts - num_pages * num_sliding_layers) // num_full_layers
    else:  # a block takes no memory but its page
        num_pages, num_blocks = num_whole_blocks, _MOST_BLOCKS * num_whole_blocks
    if num_pages < max(2 * step.pages_of_step, step.pages_of_step + step.pages_of_row):
        return undivided
    return PoolSizes(num_blocks=num_blocks, num_window_pages=num_pages)


def pages_for(num_blocks: int, step: StepSize) -> int:
    """Count the pages for a number of blocks that was given: as many as can be in use."""
    return min(num_blocks, step.most_pages)
