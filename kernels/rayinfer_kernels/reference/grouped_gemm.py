"""Grouped GEMM, each group of rows with its own weight, and weighted combination of the output rows."""

import itertools

import torch
import torch.nn.functional as F

from rayinfer_kernels.packed_weight import PackedWeight
from rayinfer_kernels.reference.linear import packed_linear

VECTOR_BYTES = 16


def grouped_gemm(x: torch.Tensor, weight: torch.Tensor, group_starts: torch.Tensor) -> torch.Tensor:
    """Multiply rows group_starts[i] to group_starts[i + 1] of x by weight[i]^T, one group after the other."""
    if x.is_cuda and _are_aligned(x, weight):
        # On a GPU the loop below would wait for the sizes of the groups.
        return F.grouped_mm(x, weight.mT, offs=group_starts[1:].to(torch.int32))
    out = x.new_empty(len(x), weight.shape[1])
    for group, (start, end) in _groups_with_rows(group_starts):
        out[start:end] = F.linear(x[start:end], weight[group])
    return out


def packed_grouped_gemm(x: torch.Tensor, weight: PackedWeight, group_starts: torch.Tensor) -> torch.Tensor:
    """Do the same with weights that another implementation packed."""
    out = x.new_empty(len(x), weight.out_features)
    for group, (start, end) in _groups_with_rows(group_starts):
        out[start:end] = packed_linear(x[start:end], weight.layer(group), None)
    return out


def moe_combine(rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum rows[indices[:, i]] x weights[:, i] in the order of i, in float32."""
    total = torch.zeros(len(indices), rows.shape[1], device=rows.device)
    for chosen, weight in zip(indices.T, weights.T, strict=True):
        total += rows[chosen].float() * weight[:, None]
    return total.to(rows.dtype)


def _are_aligned(x: torch.Tensor, weight: torch.Tensor) -> bool:
    # torch's grouped product wants rows that begin at whole vectors, of its inputs and of its output.
    widths = (x.stride(0), weight.shape[1], weight.shape[2])
    return all(width * x.element_size() % VECTOR_BYTES == 0 for width in widths)


def _groups_with_rows(group_starts: torch.Tensor) -> list[tuple[int, tuple[int, int]]]:
    spans = enumerate(itertools.pairwise(group_starts.tolist()))
    return [(group, (start, end)) for group, (start, end) in spans if start < end]
