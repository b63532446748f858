"""Upload of a step's arrays to the device in one copy."""

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
import torch

_ALIGNMENT = 64  # bytes; kernels load several numbers at once
_FIRST_BYTES = 1 << 16


class Upload(Protocol):
    """Makes tensors on the device of a step's arrays."""

    def send(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Return tensors of the arrays' shapes and types."""


class HostTensors:
    """The arrays themselves, for steps on a CPU."""

    def send(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Return tensors that share the arrays' memory; copies of arrays that must not be written to."""
        return [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays]


class StepUpload:
    """Staging buffers of a step's arrays, used in rotation: one is filled while another is read.

    On a CPU the arrays are read from the buffer itself.
    """

    def __init__(self, device: torch.device, num_buffers: int = 2) -> None:
        self._buffers = [_Buffer(device) for _ in range(num_buffers)]
        self._next = 0

    def send(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Copy the arrays; returns tensors of their shapes and types, valid for as many calls as there are buffers."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        starts, num_bytes = [], 0
        for array in arrays:
            starts.append(num_bytes)
            num_bytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        buffer.ensure_capacity(num_bytes)
        for array, start in zip(arrays, starts, strict=True):
            target = buffer.bytes_on_host[start : start + array.nbytes].view(array.dtype)
            target.reshape(array.shape)[...] = array
        buffer.send(num_bytes)
        return [buffer.tensor(array, start) for array, start in zip(arrays, starts, strict=True)]


class _Buffer:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"  # or the copy would not be asynchronous
        self._sent = torch.cuda.Event() if self._is_pinned else None  # type: ignore[no-untyped-call]
        self._allocate(_FIRST_BYTES)

    def _allocate(self, num_bytes: int) -> None:
        self._on_host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)
        self._on_device = torch.empty_like(self._on_host, device=self._device) if self._is_pinned else self._on_host
        self.bytes_on_host: np.ndarray = self._on_host.numpy()

    def ensure_capacity(self, num_bytes: int) -> None:
        """Wait for the last copy, and grow the buffer if it is too small."""
        if self._sent is not None:
            self._sent.synchronize()
        if num_bytes > len(self.bytes_on_host):
            self._allocate(max(num_bytes, 2 * len(self.bytes_on_host)))

    def send(self, num_bytes: int) -> None:
        """Start the copy."""
        if self._sent is not None:
            self._on_device[:num_bytes].copy_(self._on_host[:num_bytes], non_blocking=True)
            self._sent.record()

    def tensor(self, array: np.ndarray, start: int) -> torch.Tensor:
        """Return an array's tensor on the device."""
        return self._on_device[start : start + array.nbytes].view(_torch_dtype(array.dtype)).view(array.shape)


@cache
def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
