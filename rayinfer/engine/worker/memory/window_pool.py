"""Choice of the KV cache manager: whether sliding-window layers have a pool of their own, and its size."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rayinfer.engine.ranks.rank_coordinates import Ranks
from rayinfer.engine.worker.resolved_config import ResolvedConfig
from rayinfer.kv_cache.hybrid_sizes import PoolSizes, StepSize, divide_pool, pages_for
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import empty_decoder

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPool:
    """The window pool of a model; a rank's layers may be of one kind only."""

    window: int  # the longest of all layers, in tokens
    all_layers_slide: bool  # of the whole model
    slides: tuple[bool, ...]  # each layer here

    def divide(
        self, config: ResolvedConfig, num_whole_blocks: int, num_steps_at_once: int, group: Ranks | None
    ) -> list[int]:
        """Count blocks and window pages in the memory of so many blocks of all layers, the same on all ranks.

        A number of blocks that the settings give stays as it is.
        """
        step = StepSize(
            num_rows=config.num_rows,
            num_tokens=num_steps_at_once * config.max_num_batched_tokens,
            window=self.window,
            block_size=config.block_size,
        )
        num_sliding = sum(self.slides)
        layers = {"num_full_layers": len(self.slides) - num_sliding, "num_sliding_layers": num_sliding}
        sizes = (
            divide_pool(num_whole_blocks, **layers, step=step)
            if config.num_kv_blocks is None
            else PoolSizes(num_blocks=num_whole_blocks, num_window_pages=pages_for(num_whole_blocks, step))
        )
        counts = [sizes.num_blocks, min(sizes.num_window_pages, sizes.num_blocks)]
        return counts if group is None else group.reduce_min(counts)


def window_pool(
    config: ResolvedConfig,
    decoder: Decoder,
    folder: Path,
    longest_sequence: int,
    device_type: str,
    group: Ranks | None,
) -> WindowPool | None:
    """Return the window pool of a model with sliding-window layers, the same on every rank; None without one."""
    if not isinstance(decoder, CausalDecoder):
        return None
    whole: Decoder = decoder if group is None else empty_decoder(folder)
    assert isinstance(whole, CausalDecoder), "the class of this rank's decoder"
    windows = [size for size in whole.windows if size is not None]
    if not windows or max(windows) >= longest_sequence:
        return None
    reason = _no_pool_because(config, device_type)
    if reason:
        _logger.info("sliding-window layers keep all KV blocks: %s", reason)
        return None
    all_layers_slide = len(windows) == len(whole.windows)
    return WindowPool(
        window=max(windows),
        all_layers_slide=all_layers_slide,
        slides=tuple(size is not None for size in decoder.windows),
    )


def _no_pool_because(config: ResolvedConfig, device_type: str) -> str:
    """Say what needs blocks that have all layers; empty: nothing."""
    is_disabled = config.disable_hybrid_kv_cache_manager
    settings: Sequence[tuple[bool, str]] = (
        (is_disabled is True, "disable_hybrid_kv_cache_manager"),
        (is_disabled is None and device_type != "cpu", f"the default on {device_type}"),
        (config.engine == "static", "a static engine"),
        (config.kv_offload_bytes is not None, "kv_offload_bytes"),
        (config.kv_store_gib is not None, "kv_store_gib"),
        (config.draft_model is not None, "draft_model"),
        (config.record_schedule is not None, "record_schedule"),
    )
    return next((name for applies, name in settings if applies), "")
