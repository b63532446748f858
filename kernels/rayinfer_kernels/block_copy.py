"""Copies of whole blocks between two pools, on one device or on two."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from rayinfer_kernels.kv_cache import KVCache


def copy_blocks(source: KVCache, target: KVCache, source_blocks: torch.Tensor, target_blocks: torch.Tensor) -> None:
    """Copy source_blocks [num_copies] of one pool to target_blocks [num_copies] of another, or of the same.

    Between a GPU and pinned host memory it returns at once. The copy is queued on the GPU's current stream,
    so whatever comes after it there sees it done; only the host must not look before that stream is through.
    """
    for target_tensor, source_tensor in zip(target.tensors, source.tensors, strict=True):
        kept, given = _indexable(target_tensor), _indexable(source_tensor)
        if kept.device == given.device:
            chosen = given.index_select(0, source_blocks.to(given.device))
            kept.index_copy_(0, target_blocks.to(given.device), chosen)
        elif given.device.type == "cpu":
            fetch_from_host(given, kept, source_blocks, target_blocks)
        else:
            send_to_host(given, kept, source_blocks, target_blocks)


def _indexable(tensor: torch.Tensor) -> torch.Tensor:
    """View eight-bit floats as bytes, since torch cannot index them on every device."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def fetch_from_host(
    host: torch.Tensor, device: torch.Tensor, host_blocks: torch.Tensor, device_blocks: torch.Tensor
) -> None:
    """Fetch blocks into one piece, then scatter them to their blocks on the device."""
    arrived = torch.empty((len(host_blocks), *host.shape[1:]), dtype=host.dtype, device=device.device)
    for run in _runs(host_blocks.tolist()):
        arrived[run.positions].copy_(host[run.blocks], non_blocking=True)
    device.index_copy_(0, device_blocks.to(device.device, non_blocking=True), arrived)


def send_to_host(
    device: torch.Tensor, host: torch.Tensor, device_blocks: torch.Tensor, host_blocks: torch.Tensor
) -> None:
    """Gather blocks on the device, so that what overwrites them next need not wait, and send them from there."""
    gathered = device.index_select(0, device_blocks.to(device.device, non_blocking=True))
    for run in _runs(host_blocks.tolist()):
        host[run.blocks].copy_(gathered[run.positions], non_blocking=True)


class _Run(NamedTuple):
    """Neighboring blocks that also stand next to each other in a list: one copy moves them all."""

    positions: slice
    blocks: slice


def _runs(blocks: list[int]) -> Iterator[_Run]:
    start = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            yield _Run(slice(start, end), slice(blocks[start], blocks[end - 1] + 1))
            start = end
