"""Copies of small arrays between the host and the device that holds the logits."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def copy_to_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """`array` as a tensor on `device`, without making the host wait for what the device is doing."""
    # A column of a wider array need not have strides that torch can describe; its copy has.
    tensor = torch.from_numpy(array.copy())
    if device.type == "cuda":  # only from pinned memory is the copy asynchronous
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class HostCopy:
    """A tensor on its way to the host, from a GPU in pinned memory; `array` waits for it."""

    def __init__(self, tensor: Tensor) -> None:
        is_on_gpu = tensor.device.type == "cuda"
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_on_gpu)
        self._copy.copy_(tensor, non_blocking=is_on_gpu)
        self._event: torch.cuda.Event | None = None
        if is_on_gpu:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def array(self) -> npt.NDArray[np.generic]:
        """Wait for the copy."""
        if self._event is not None:
            self._event.synchronize()
        array: npt.NDArray[np.generic] = self._copy.numpy()
        return array
