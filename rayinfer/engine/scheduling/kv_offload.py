"""KV offloading: blocks of preempted requests in a second pool, in host memory."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rayinfer.engine.plan.executor_commands import BlockCopy
from rayinfer.engine.plan.step_plan import Int32Array
from rayinfer.engine.scheduling.request import Request
from rayinfer.kv_cache.block_manager import BlockManager


@dataclass(frozen=True, kw_only=True, slots=True)
class _SwappedOut:
    blocks: list[int]  # of the second pool
    num_tokens: int
    block_hashes: Sequence[bytes]  # of the request's full blocks


class KVOffload:
    """Requests with blocks in the second pool, and the copies that are still to be made.

    Nothing is copied here: copies are queued in `copies`, and the engine makes them in this order, all before the next
    step writes anything. So a block may be reused as soon as its copy is queued. Equal blocks of several requests are
    kept once, as in the prefix cache.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.copies: deque[BlockCopy] = deque()
        self._pool = BlockManager(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching)
        self._swapped_out: dict[str, _SwappedOut] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in the second pool."""
        return self._pool.num_blocks

    @property
    def num_used(self) -> int:
        """Blocks of the second pool that hold something of a request."""
        return self._pool.num_used

    def holds(self, request: Request) -> bool:
        """Return whether the second pool has blocks of the request."""
        return request.request_id in self._swapped_out

    def swap_out(self, request: Request, token_ids: Int32Array, blocks: Sequence[int], num_stored_blocks: int) -> bool:
        """Copy out the `blocks` of a request's computed `token_ids`, all of them; False if they do not fit.

        The first `num_stored_blocks` are in the prefix cache. They are copied although they may be hit there again: the
        preempting request is given blocks without readers first.
        """
        count = -(-len(token_ids) // self._pool.block_size)
        block_hashes = request.block_hashes.hashes[:num_stored_blocks]
        kept = self._pool.find_cached_prefix(block_hashes, token_ids, request.salt).blocks
        num_kept = len(kept)
        self._pool.pin(kept)
        if not count or count - num_kept > self._pool.num_free:
            self._pool.free(kept)
            return False
        kept += self._pool.allocate(count - num_kept)
        self._swapped_out[request.request_id] = _SwappedOut(
            blocks=kept, num_tokens=len(token_ids), block_hashes=request.block_hashes.hashes
        )
        self._queue_copy("out", blocks[num_kept:count], kept[num_kept:])
        self._store(request, token_ids, kept[: len(block_hashes)], num_kept)
        if request.trace is not None:
            request.trace.record("swapped_out", tokens=len(token_ids), copied_blocks=count - num_kept)
        return True

    def swap_in(self, request: Request, blocks: Sequence[int], num_cached_blocks: int) -> int:
        """Copy the request's blocks back into its new ones, behind those found in the prefix cache.

        Returns how many of its tokens are computed then.
        """
        num_cached_tokens = num_cached_blocks * self._pool.block_size
        kept = self._swapped_out.pop(request.request_id, None)
        if kept is None:
            return num_cached_tokens
        self._queue_copy("in", kept.blocks[num_cached_blocks:], blocks[num_cached_blocks : len(kept.blocks)])
        self._pool.free(kept.blocks)
        if request.trace is not None:
            num_copied = max(len(kept.blocks) - num_cached_blocks, 0)
            request.trace.record("swapped_in", tokens=kept.num_tokens, copied_blocks=num_copied)
        return max(num_cached_tokens, kept.num_tokens)

    def drop(self, request: Request) -> None:
        """Free the blocks of a finished request."""
        kept = self._swapped_out.pop(request.request_id, None)
        if kept is not None:
            self._pool.free(kept.blocks)

    def forget(self, block_hashes: set[bytes]) -> None:
        """Drop requests with blocks of these hashes, and remove them from the prefix cache: they are not finite."""
        for request_id, kept in list(self._swapped_out.items()):
            if not block_hashes.isdisjoint(kept.block_hashes):
                self._pool.free(self._swapped_out.pop(request_id).blocks)
        self._pool.forget(block_hashes)

    def drop_all(self) -> None:
        """Drop everything: the memory of the pools is freed."""
        for kept in self._swapped_out.values():
            self._pool.free(kept.blocks)
        self._swapped_out.clear()
        self._pool.reset_prefix_cache()
        self.copies.clear()

    def _queue_copy(
        self, direction: Literal["out", "in"], source_blocks: Sequence[int], target_blocks: Sequence[int]
    ) -> None:
        if source_blocks:
            self.copies.append(BlockCopy(direction=direction, source_blocks=source_blocks, target_blocks=target_blocks))

    def _store(self, request: Request, token_ids: Int32Array, blocks: list[int], first: int) -> None:
        size = self._pool.block_size
        for index in range(first, len(blocks)):
            self._pool.store(
                blocks[index],
                request.block_hashes.hashes[index],
                parent=blocks[index - 1] if index else None,
                token_ids=token_ids[index * size : (index + 1) * size],
                salt=request.salt,
            )
