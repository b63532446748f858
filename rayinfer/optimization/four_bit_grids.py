"""Weights that were rounded to four bits before, in groups of 32 inputs, as llama.cpp's Q4_0, Q4_1 and Q4_K are.

A group of such a weight holds at most sixteen evenly spaced numbers, which need not lie around zero. Rounding them a
second time, around zero, loses much; with an offset for each group the numbers stay as they are.
"""

import torch

from rayinfer_kernels import ops

LOWEST, STEPS = -8, 15  # of what four bits hold, the first number and the number of steps behind it
TOLERANCE = 0.1  # of a step: the weight may have been rounded to bfloat16 since
ROWS_AT_ONCE = 512
TINY = 1e-30


def keep_grid(weight: torch.Tensor) -> ops.QuantizedWeight | None:
    """Return a weight [out_features, in_features] of such groups with the numbers that it has; None for any other."""
    num_inputs = weight.shape[1]
    if num_inputs % ops.GROUP_SIZE or not weight.numel():
        return None
    found = []
    for rows in torch.split(weight, ROWS_AT_ONCE):
        numbers = _numbers_of(rows.float().view(len(rows), -1, ops.GROUP_SIZE))
        if numbers is None:
            return None
        found.append(numbers)
    numbers = torch.cat(found)
    scales, offsets = _fit(weight.float().view_as(numbers), numbers)
    return ops.QuantizedWeight(
        numbers.to(torch.int8).view_as(weight),
        scales,
        ops.WeightFormat.INT4_DYNAMIC,
        ops.quantize(offsets, ops.WeightFormat.INT8_DYNAMIC),
    )


def _numbers_of(groups: torch.Tensor) -> torch.Tensor | None:
    """Find whole numbers from -8 to 7 that groups [..., 32] are evenly spaced at: None where there are none."""
    least, largest = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    numbers, is_left = torch.zeros_like(groups), torch.ones_like(least, dtype=torch.bool)
    for steps in range(STEPS, 0, -1):
        positions = (groups - least) * (steps / (largest - least).clamp_min(TINY))
        rounded = positions.round()
        fits = is_left & ((positions - rounded).abs().amax(-1, keepdim=True) <= TOLERANCE)
        numbers = torch.where(fits, rounded + LOWEST, numbers)
        is_left &= ~fits
        if not is_left.any():
            return numbers
    return None


def _fit(groups: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales, in values of bfloat16, and offsets [..., num_groups] that come nearest to groups [..., 32]."""
    mean, middle = groups.mean(-1), numbers.mean(-1)
    distances = numbers - middle[..., None]
    scales = (distances * groups).sum(-1) / distances.square().sum(-1).clamp_min(TINY)
    scales = scales.to(torch.bfloat16).float()
    return scales, mean - middle * scales
