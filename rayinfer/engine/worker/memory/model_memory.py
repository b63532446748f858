"""Memory of a model's weights and block pools, and its release while the engine sleeps."""

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rayinfer.engine.plan.executor_commands import SleepLevel
from rayinfer.kv_cache.cache_tensors import BlockPool, BlockShape
from rayinfer.kv_cache.pool_pages import PoolPages
from rayinfer.kv_cache.pool_size import can_prefault
from rayinfer.models.decoder import Decoder

_HOST = torch.device("cpu")


class ModelMemory:
    """A loaded decoder and its blocks; `load` loads the decoder again, prepared for its blocks.

    Between `release` and `restore` no step can run and no block be copied. With `slides`, whether each layer has a
    sliding window, the keys and values of those that have are in a pool of `num_window_pages`. The pool's first
    `num_blocks_taken`, which are allocated first, get their memory from the system beside the steps instead of in them,
    and as many others as leave the system enough.
    """

    def __init__(
        self,
        decoder: Decoder,
        load: Callable[[], Decoder],
        shape: BlockShape,
        *,
        num_blocks: int,
        num_offload_blocks: int = 0,
        device: torch.device = _HOST,
        slides: Sequence[bool] = (),
        num_window_pages: int = 0,
        num_blocks_taken: int = 0,
    ) -> None:
        self.decoder: Decoder | None = decoder
        self._load = load
        self._slides = tuple(slides)
        self._shape = replace(shape, num_layers=shape.num_layers - sum(slides))
        self._window_shape = replace(shape, num_layers=sum(slides))
        self._num_window_pages = num_window_pages
        self.num_blocks = num_blocks
        self.num_offload_blocks = num_offload_blocks
        self._num_blocks_taken = num_blocks_taken
        self._device = device
        self._pool, self._window_pool = self._new_pool(), self._new_window_pool()
        self._offload_pool = self._new_offload_pool()
        self._kept_pages: Sequence[int] = ()  # as the next two, of the window pool
        self._kept_window_pool: BlockPool | None = None
        self._kept_blocks: Sequence[int] = ()  # which of the pool's blocks are in `_kept`, while they are
        self._kept: BlockPool | None = None
        self._bind(self._pool, self._window_pool)
        self._pool_pages = self._take_pages()

    def copy_out(self, blocks: Sequence[int], offload_blocks: Sequence[int]) -> None:
        """Copy blocks of the model's pool into the second pool."""
        self._pool.copy_to(self._offload_pool, blocks, offload_blocks)

    def copy_in(self, offload_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy blocks of the second pool into the model's."""
        self._offload_pool.copy_to(self._pool, offload_blocks, blocks)

    def block_views(self) -> list[NDArray[np.uint8]]:
        """Return the bytes of the model's pool in host memory, as `BlockPool.block_views` does."""
        return self._pool.block_views()

    def begin_step(self) -> None:
        """Take no memory for the pool while a step is computed."""
        if self._pool_pages is not None:
            self._pool_pages.begin_step()

    def end_step(self) -> None:
        """Go on with it once no step follows."""
        if self._pool_pages is not None:
            self._pool_pages.end_step()

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int], window_pages_in_use: Sequence[int] = ()) -> None:
        """Free memory by level; of the pools' blocks and pages only those in use are ever kept."""
        self._end_pages()
        if level is SleepLevel.OFFLOAD:
            self._keep_blocks(blocks_in_use, window_pages_in_use)
            self._move_weights(_HOST)
        elif level is SleepLevel.RECOMPUTE:
            self.decoder = None
            self._pool, self._offload_pool, self._window_pool = self._no_pool(), self._no_pool(), self._no_pool()
        if level is not SleepLevel.PERSIST:
            _return_free_memory(self._device)

    def restore(self, level: SleepLevel) -> None:
        """Allocate again what `release` of this level freed; raises ModelLoadError when the checkpoint is gone."""
        if level is SleepLevel.PERSIST:
            self._pool_pages = self._take_pages()
            return
        if level is SleepLevel.OFFLOAD:
            self._move_weights(self._device)
        else:
            self.decoder = self._load()
            self._offload_pool = self._new_offload_pool()
        self._pool, self._window_pool = self._new_pool(), self._new_window_pool()
        if self._kept is not None and self._kept_window_pool is not None:
            self._kept.move_to(self._pool, range(len(self._kept_blocks)), self._kept_blocks)
            self._kept_window_pool.move_to(self._window_pool, range(len(self._kept_pages)), self._kept_pages)
            self._kept, self._kept_blocks, self._kept_window_pool, self._kept_pages = None, (), None, ()
        self._bind(self._pool, self._window_pool)
        self._pool_pages = self._take_pages()

    def drop(self) -> None:
        """Free everything for good."""
        self._end_pages()
        self.decoder = self._kept = self._kept_window_pool = None
        self._pool, self._offload_pool, self._window_pool = self._no_pool(), self._no_pool(), self._no_pool()
        if self._device.type == "cuda":  # or the next engine of this process would find too little free memory
            _return_free_memory(self._device)

    @property
    def loaded_decoder(self) -> Decoder:
        """The decoder, between `restore` and `release`."""
        assert self.decoder is not None, "the weights are released"
        return self.decoder

    def _take_pages(self) -> PoolPages | None:
        return PoolPages(self.block_views, self._num_blocks_taken, can_prefault) if self._num_blocks_taken else None

    def _end_pages(self) -> None:
        if self._pool_pages is not None:
            self._pool_pages.end()
            self._pool_pages = None

    def _keep_blocks(self, blocks: Sequence[int], pages: Sequence[int]) -> None:
        self._kept, self._kept_blocks = BlockPool(self._shape, len(blocks), _HOST), blocks
        self._kept_window_pool, self._kept_pages = BlockPool(self._window_shape, len(pages), _HOST), pages
        self._bind(self._no_pool(), BlockPool(self._window_shape, 0, _HOST))  # or it would keep the memory
        self._pool.move_to(self._kept, blocks, range(len(blocks)))
        self._window_pool.move_to(self._kept_window_pool, pages, range(len(pages)))

    def _bind(self, pool: BlockPool, window_pool: BlockPool) -> None:
        """Give each layer its cache of the pool for its kind."""
        caches, window_caches = iter(pool.caches), iter(window_pool.caches)
        slides = self._slides or (False,) * len(pool.caches)
        self.loaded_decoder.bind_kv_caches([next(window_caches if is_sliding else caches) for is_sliding in slides])

    def _move_weights(self, device: torch.device) -> None:
        decoder = self.loaded_decoder
        assert isinstance(decoder, torch.nn.Module)
        decoder.to(device)

    def _new_pool(self) -> BlockPool:
        return BlockPool(self._shape, self.num_blocks, self._device)

    def _new_window_pool(self) -> BlockPool:
        return BlockPool(self._window_shape, self._num_window_pages, self._device)

    def _new_offload_pool(self) -> BlockPool:
        return BlockPool(self._shape, self.num_offload_blocks, _HOST, pinned=self._device.type == "cuda")

    def _no_pool(self) -> BlockPool:
        return BlockPool(self._shape, 0, _HOST)


def _return_free_memory(device: torch.device) -> None:
    """Return freed memory to the system; both allocators would cache it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
