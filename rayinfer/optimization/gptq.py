"""GPTQ (Frantar et al. 2022): rounding of a matrix to four bits so that its products change little."""

import torch
import torch.nn.functional as F

from rayinfer_kernels import ops

DAMPING = 0.01  # of the mean of the diagonal: what was seen of the inputs is never all
DRIFT_FRACTION = 0.5  # how much of the drift is made up for: all of it would follow what was seen too closely
LOWEST, HIGHEST = -8, 7  # the integers that four bits hold
# How much of a group's largest weight the scale reaches: what is cut off there makes the others finer.
FRACTIONS = torch.linspace(0.7, 1.1, 24).tolist()
TINY = 1e-12


def gptq(weight: torch.Tensor, gram: torch.Tensor, drift: torch.Tensor | None = None) -> ops.QuantizedWeight:
    """Round weight [num_outputs, num_inputs] in float32, for inputs X [num_tokens, num_inputs] with gram = X^T X.

    Groups of inputs are rounded one after the other, those that matter most first, and those to come make up for what
    was lost. Where X already differs from
    what the unquantized model has, X', the matrix first makes up for that, too: drift = (X' - X)^T X (GPTAQ, Li et al.
    2025).
    """
    num_inputs = weight.shape[1]
    padding = -num_inputs % ops.GROUP_SIZE
    weight = F.pad(weight.float(), (0, padding))
    gram = _damped(F.pad(gram, (0, padding, 0, padding)))
    if drift is not None:
        drift = F.pad(drift, (0, padding, 0, padding))
        weight = weight + DRIFT_FRACTION * torch.linalg.solve(gram, (weight @ drift).T).T
    order = gram.diagonal().view(-1, ops.GROUP_SIZE).sum(1).argsort(descending=True)
    inputs = (order[:, None] * ops.GROUP_SIZE + torch.arange(ops.GROUP_SIZE)).flatten()
    numbers, scales = _round_in_order(weight[:, inputs], gram[inputs][:, inputs])
    numbers, scales = numbers[:, inputs.argsort()], scales[:, order.argsort()]
    return ops.QuantizedWeight(numbers[:, :num_inputs].contiguous(), scales, ops.WeightFormat.INT4_DYNAMIC)


def _round_in_order(weight: torch.Tensor, gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers [num_outputs, num_inputs] and scales [num_outputs, num_groups]; `weight` is lost."""
    importance, spread = gram.diagonal(), _spread_of_errors(gram)
    numbers = torch.empty(weight.shape, dtype=torch.int8)
    scales = []
    for start in range(0, weight.shape[1], ops.GROUP_SIZE):
        group = slice(start, start + ops.GROUP_SIZE)
        scales.append(choose_scales(weight[:, group], importance[group]))
        numbers[:, group], errors = _round_group(weight[:, group], scales[-1], spread[group, group])
        weight[:, start + ops.GROUP_SIZE :] -= errors @ spread[group, start + ops.GROUP_SIZE :]
    return numbers, torch.stack(scales, 1)


def _damped(gram: torch.Tensor) -> torch.Tensor:
    """Add to the diagonal, more where an input was never seen."""
    diagonal = gram.diagonal()
    unseen = torch.where(diagonal > 0, 0.0, 1.0)
    return gram + torch.diag(unseen + DAMPING * diagonal.mean())


def _spread_of_errors(gram: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of gram's inverse: row i is how later inputs make up for an error in i."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram.double()))
    spread: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return spread.float()


def _round_group(group: torch.Tensor, scale: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round input by input; returns the whole numbers, and the errors in units of `spread`'s diagonal."""
    columns = group.T.contiguous()  # [inputs, num_outputs], so that an input lies in one piece
    rounded, errors = torch.empty_like(columns), torch.empty_like(columns)
    for i in range(len(columns)):
        rounded[i] = round_to_grid(columns[i], scale)
        errors[i] = (columns[i] - rounded[i] * scale) / spread[i, i]
        columns[i + 1 :] -= spread[i, i + 1 :, None] * errors[i]
    return rounded.T, errors.T


def choose_scales(group: torch.Tensor, importance: torch.Tensor) -> torch.Tensor:
    """Find, for each output of group [num_outputs, inputs], the scale [num_outputs] with the least squared error.

    The error of an input counts by its importance [inputs]. Scales have a sign: there are 8 steps to one side of zero
    and 7 to the other, and the largest weight of an output may lie on either. They are bfloat16 numbers in float32.
    """
    largest, index = group.abs().max(1, keepdim=True)
    towards_lowest = torch.where(group.gather(1, index) > 0, -1.0, 1.0)
    best_error = torch.full_like(largest, torch.inf)
    best_scale = torch.ones_like(largest)
    for steps, sign in ((-LOWEST, towards_lowest), (HIGHEST, -towards_lowest)):
        for fraction in FRACTIONS:
            scale = (sign * (largest * (fraction / steps)).clamp_min(TINY)).bfloat16().float()
            error = (round_to_grid(group, scale) * scale).sub_(group).square_().mul_(importance).sum(1, keepdim=True)
            is_better = error < best_error
            best_error = torch.where(is_better, error, best_error)
            best_scale = torch.where(is_better, scale, best_scale)
    return best_scale[:, 0]


def round_to_grid(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Divide and round to the whole numbers that four bits hold, in float32."""
    return (weight / scale).round_().clamp_(LOWEST, HIGHEST)
