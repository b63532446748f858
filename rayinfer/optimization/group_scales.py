"""Scales for weights of four bits, one for each group of neighbouring inputs."""

import torch

LOWEST, HIGHEST = -8, 7  # the whole numbers that four bits hold
# How much of a group's largest weight the scale reaches: what is cut off there makes the others finer.
SHARES = torch.linspace(0.7, 1.1, 24).tolist()
TINY = 1e-12


def choose_scales(group: torch.Tensor, importance: torch.Tensor) -> torch.Tensor:
    """Find, for each output of group [num_outputs, inputs], the scale [num_outputs] with the least squared error.

    The error of an input counts by its importance [inputs]. Scales have a sign: there are 8 steps to one side of zero
    and 7 to the other, and the largest weight of an output may lie on either. They are bfloat16 numbers in float32.
    """
    largest, place = group.abs().max(1, keepdim=True)
    towards_lowest = torch.where(group.gather(1, place) > 0, -1.0, 1.0)
    best_error = torch.full_like(largest, torch.inf)
    best_scale = torch.ones_like(largest)
    for steps, sign in ((-LOWEST, towards_lowest), (HIGHEST, -towards_lowest)):
        for share in SHARES:
            scale = (sign * (largest * (share / steps)).clamp_min(TINY)).bfloat16().float()
            error = (round_to_grid(group, scale) * scale).sub_(group).square_().mul_(importance).sum(1, keepdim=True)
            is_better = error < best_error
            best_error = torch.where(is_better, error, best_error)
            best_scale = torch.where(is_better, scale, best_scale)
    return best_scale[:, 0]


def round_to_grid(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Divide and round to the whole numbers that four bits hold, in float32."""
    return (weight / scale).round_().clamp_(LOWEST, HIGHEST)
