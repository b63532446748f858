"""Linear layers with packed weights."""

import torch
import torch.nn.functional as F

from rayinfer_kernels.int4_blocks import GROUP_SIZE
from rayinfer_kernels.low_rank import LowRank, add_low_rank_
from rayinfer_kernels.packed_weight import PackedWeight, WeightFormat
from rayinfer_kernels.quantized_weight import QuantizedWeight, unpack_quantized
from rayinfer_kernels.reference.elementwise import gelu_tanh_and_mul, silu_and_mul
from rayinfer_kernels.reference.float8 import multiply as multiply_float8
from rayinfer_kernels.reference.float8 import quantize_rows as quantize_float8_rows
from rayinfer_kernels.reference.quantized_rows import quantize_rows


def pack(weight: torch.Tensor, is_gated: bool = False) -> PackedWeight | None:
    """Torch's own product reads weights as they are."""
    return None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + bias for a weight as the model has it."""
    return F.linear(x, weight, bias)


def packed_embedding(weight: PackedWeight, indices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Take rows of a packed weight, as numbers of `dtype`."""
    return weight.rows(indices, dtype)


def packed_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, low_rank: LowRank | None = None
) -> torch.Tensor:
    """x W^T + bias for a weight that is quantized or that another implementation packed."""
    if low_rank is not None:
        return add_low_rank_(packed_linear(x, weight, bias), x, low_rank, is_gated=weight.is_gated)
    if weight.format is WeightFormat.FLOAT8_DYNAMIC:
        return _float8_linear(x, weight, bias).to(x.dtype)
    if weight.format.is_quantized and not weight.format.has_groups:
        return _quantized_linear(x, unpack_quantized(weight), bias).to(x.dtype)
    return F.linear(x, weight.rows(torch.arange(weight.num_rows, device=x.device), x.dtype), bias)


def packed_gated_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    activation: str,
    low_rank: LowRank | None = None,
) -> torch.Tensor:
    """activation(gate) * up for a gated weight of the same kinds."""
    gate_and_multiply = silu_and_mul if activation == "silu" else gelu_tanh_and_mul
    is_float8 = weight.format is WeightFormat.FLOAT8_DYNAMIC
    if low_rank is None and weight.format.is_quantized and not is_float8 and not weight.format.has_groups:
        return gate_and_multiply(_quantized_linear(x, unpack_quantized(weight), bias)).to(x.dtype)
    return gate_and_multiply(packed_linear(x, weight, bias, low_rank))


def _float8_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """In float32; a GPU's tensor cores add in an order of their own, and hold fewer digits while they do."""
    assert weight.scales is not None
    rows = quantize_float8_rows(x.reshape(-1, x.shape[-1]))
    product = multiply_float8(rows, weight.panels, weight.scales)[:, : weight.num_rows]
    out = product.to(torch.bfloat16).float()  # as a GPU gives it
    return (out if bias is None else out + bias.float()).view(*x.shape[:-1], weight.num_rows)


def _quantized_linear(x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """In float32, all sums of integers exact."""
    if weight.format is WeightFormat.INT8:
        out = x.float() @ weight.q.float().T * weight.scales
    elif weight.format is WeightFormat.INT8_DYNAMIC:
        rows = quantize_rows(x)
        out = (rows.q.double() @ weight.q.double().T).float() * weight.scales * rows.scales
    else:
        rows = quantize_rows(x)
        out = _sum_of_groups(rows.q.float(), weight) * rows.scales
    return out if bias is None else out + bias.float()


def _sum_of_groups(rows: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    # One group after the other, as the kernels do: then every bit is the same, for a scale of bfloat16 or of eight bits
    # times a group's sum has no more digits than float32.
    if (offsets := weight.offsets) is None:
        return _add_groups(
            torch.zeros(*rows.shape[:-1], len(weight.q), device=rows.device), rows, weight, weight.scales
        )
    groups = F.pad(rows, (0, -rows.shape[-1] % GROUP_SIZE)).view(*rows.shape[:-1], -1, GROUP_SIZE)
    sums = quantize_rows(groups.sum(-1))
    out = (sums.q.double() @ offsets.q.double().T).float() * offsets.ratios * sums.scales
    return _add_groups(out, rows, weight, offsets.scale_q.float()) * offsets.units


def _add_groups(out: torch.Tensor, rows: torch.Tensor, weight: QuantizedWeight, scales: torch.Tensor) -> torch.Tensor:
    for group, of_group in enumerate(scales.T):
        part = slice(group * GROUP_SIZE, (group + 1) * GROUP_SIZE)
        out += rows[..., part] @ weight.q[:, part].float().T * of_group
    return out
