"""Outlier channel splitting (Zhao et al. 2019): large inputs of a product are cut into equal parts.

Each part is multiplied by a copy of the input's weights. A row of eight bits has one scale. An input in `n` parts
reaches only an nth as far, so the others have finer steps, and no weight is rounded in another way. Unlike smoothing it needs nothing before the product that could be scaled, so the head can
be split, whose weights may be the embedding's.
"""

import torch

from rayinfer_kernels import ops

FRACTIONS = (0, 1 / 64, 1 / 32)  # of the inputs, so many may be added
WORD = 4  # inputs that the kernels multiply at once
TYPICAL_QUANTILE = 0.99  # of an input's sizes in the rows, which counts as its typical size
OUTPUT_STRIDE = 16  # every so many outputs are computed with every choice
MIN_GAIN = 0.1  # of the error, below which nothing is split
EPS = 1e-12


def choose_copied_inputs(x: torch.Tensor, weight: torch.Tensor) -> list[int]:
    """Return the inputs to add for rows x [num_tokens, in_features] and weight [out_features, in_features].

    An input is listed once less than it has parts. Of the numbers tried, the one with which rows and weights of eight
    bits change a row's product least, by its size.
    """
    x, some = x.float(), weight[::OUTPUT_STRIDE].float()
    wanted = x @ some.T
    sizes = wanted.square().sum(-1).clamp_min(EPS)
    columns = ops.quantize(some, ops.WeightFormat.INT8_DYNAMIC).dequantize()
    typical = x.abs().kthvalue(max(1, int(len(x) * TYPICAL_QUANTILE)), 0).values
    best, least = torch.ones_like(typical), torch.tensor(torch.inf)
    for fraction in FRACTIONS:
        parts = _count_parts(typical, -(-int(x.shape[1] * fraction) // WORD) * WORD)
        rows = ops.quantize_rows(x / parts)
        product = (rows.q * rows.scales * parts) @ columns.T
        error = ((product - wanted).square().sum(-1) / sizes).mean()
        if error < (least if best.gt(1).any() else (1 - MIN_GAIN) * least):
            best, least = parts, error
    added = (best - 1).long()
    return torch.arange(len(added)).repeat_interleave(added).tolist()


def widen_weight(weight: torch.Tensor, copied_inputs: list[int]) -> torch.Tensor:
    """Put copies of these inputs' weights behind the others: [out_features, in_features + num_copied]."""
    return torch.cat((weight, weight[:, copied_inputs]), 1) if copied_inputs else weight


def _count_parts(sizes: torch.Tensor, num_added: int) -> torch.Tensor:
    """Cut the largest part of any input into two, again and again; counts [in_features] are powers of two."""
    parts = torch.ones_like(sizes)
    while True:
        largest = int((sizes / parts).argmax())
        if parts[largest] > num_added:
            return parts
        num_added -= int(parts[largest])
        parts[largest] *= 2
