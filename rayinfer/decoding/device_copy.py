"""Brings small host arrays to the device that holds the logits."""

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
