"""Copies whole blocks between two pools, on one device or on two."""

import torch

from rayinfer_kernels.kv_cache import KVCache


def copy_blocks(source: KVCache, target: KVCache, source_blocks: torch.Tensor, target_blocks: torch.Tensor) -> None:
    """Copy source_blocks [num_copies] of one pool to target_blocks [num_copies] of another, or of the same.

    Between a GPU and pinned host memory it returns at once. The copy then takes its turn on the GPU's current stream,
    so whatever comes after it there sees it done; only the host must not look before that stream is through.
    """
    for kept, given in ((target.key, source.key), (target.value, source.value)):
        if kept.device == given.device:
            chosen = given.index_select(0, source_blocks.to(given.device))
            kept.index_copy_(0, target_blocks.to(given.device), chosen)
        elif given.device.type == "cpu":
            _copy_to_device(given, kept, source_blocks, target_blocks)
        else:
            _copy_to_host(given, kept, source_blocks, target_blocks)


def _copy_to_device(
    host: torch.Tensor, device: torch.Tensor, host_blocks: torch.Tensor, device_blocks: torch.Tensor
) -> None:
    """Fetch the blocks one by one into one piece, which is spread over its places on the device."""
    arrived = torch.empty((len(host_blocks), *host.shape[1:]), dtype=host.dtype, device=device.device)
    for place, block in zip(arrived, host_blocks.tolist(), strict=True):
        place.copy_(host[block], non_blocking=True)
    device.index_copy_(0, device_blocks.to(device.device, non_blocking=True), arrived)


def _copy_to_host(
    device: torch.Tensor, host: torch.Tensor, device_blocks: torch.Tensor, host_blocks: torch.Tensor
) -> None:
    """Gather the blocks on the device, so that what overwrites them next need not wait, and send them one by one."""
    gathered = device.index_select(0, device_blocks.to(device.device, non_blocking=True))
    for block, values in zip(host_blocks.tolist(), gathered, strict=True):
        host[block].copy_(values, non_blocking=True)
