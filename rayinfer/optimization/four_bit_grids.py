"""Weights that were rounded to four bits before, in groups of 32 inputs, as llama.cpp's Q4_0, Q4_1 and Q4_K are.

A group of such a weight holds at most sixteen evenly spaced numbers, which need not lie around zero. Rounding them a
second time, around zero, loses much; with an offset for each group the numbers stay as they are. Scales and offsets
have eight bits each.
"""

import torch

from rayinfer_kernels import ops

LOWEST, STEPS = -8, 15  # of what four bits hold, the first number and the number of steps behind it
TOLERANCE = 0.1  # of a step: the weight may have been rounded to bfloat16 since
ROWS_AT_ONCE = 512
# Of an output's largest scale, how many units it may have: most give the finest ones, but units have few digits.
UNITS_TRIED = (128, 160, 192, 224, *range(240, 256))
MOST_UNITS, OFFSET_LIMIT = 255, 127
TINY = 1e-30
LEAST_SCALE = 2.0**-20  # of an output's largest offset, so that their ratio is no infinity


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
    offsets = _fit(weight.float().view_as(numbers), numbers)
    q = numbers.to(torch.int8).view_as(weight)
    return ops.QuantizedWeight(q, offsets.scales(), ops.WeightFormat.INT4_DYNAMIC, offsets)


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


def _fit(groups: torch.Tensor, numbers: torch.Tensor) -> ops.GroupOffsets:
    """Return the scales and offsets [..., num_groups] that come nearest to groups [..., 32]."""
    mean, middle = groups.mean(-1), numbers.mean(-1)
    distances = numbers - middle[..., None]
    weights = distances.square().sum(-1)
    scales = (distances * groups).sum(-1) / weights.clamp_min(TINY)
    largest_offsets = (mean - middle * scales).abs().amax(-1)
    scale_q, units = _round_scales(scales, weights, LEAST_SCALE * largest_offsets)
    offsets = mean - middle * (scale_q * units[..., None])
    ratios = (offsets.abs().amax(-1) / units / OFFSET_LIMIT).to(torch.bfloat16).float()
    steps = (ratios * units)[..., None]
    q = (offsets / torch.where(steps > 0, steps, 1.0)).round().clamp(-OFFSET_LIMIT, OFFSET_LIMIT)
    return ops.GroupOffsets(scale_q.to(torch.uint8), q.to(torch.int8), units, ratios)


def _round_scales(
    scales: torch.Tensor, weights: torch.Tensor, least: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers of units, and the unit of each output for which their weighted squared error is least."""
    largest = torch.maximum(scales.amax(-1), least)
    largest = torch.where(largest > 0, largest, 1.0)
    best_q, best_units = torch.zeros_like(scales), torch.ones_like(largest)
    best_error = torch.full_like(largest, torch.inf)
    for count in UNITS_TRIED:
        units = (largest / count).to(torch.bfloat16).float()
        q = (scales / units[..., None]).round().clamp(0, MOST_UNITS)
        error = ((q * units[..., None] - scales).square() * weights).sum(-1)
        is_better = error < best_error
        best_q, best_units = torch.where(is_better[..., None], q, best_q), torch.where(is_better, units, best_units)
        best_error = torch.where(is_better, error, best_error)
    return best_q, best_units
