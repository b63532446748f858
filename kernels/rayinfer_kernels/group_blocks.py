"""Weights in groups of inputs of any size, as published checkpoints have them: codes, and scales in float32.

A panel is all groups of 32 outputs. A group begins with a scale for each output, then an offset for each if the weight
has offsets. Codes of four bits follow as [group_size / 2, 32] bytes, those of inputs 2 i and 2 i + 1 in the lower and
upper half, or codes of eight bits as [group_size, 32]. A weight is its code's number times the scale plus the offset.
"""

from dataclasses import dataclass

import torch

from rayinfer_kernels.packed_weight import PANEL_WIDTH, PackedWeight, WeightFormat, padded


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedWeight:
    """A weight [out_features, in_features] in whole groups of an even number of inputs."""

    # int8, uint8 or float8_e4m3fn [out_features, in_features]; of INT4_GROUPS -8 to 7, or 0 to 15 with offsets
    codes: torch.Tensor
    scales: torch.Tensor  # float32 [out_features, in_features / group_size]
    group_size: int
    format: WeightFormat
    offsets: torch.Tensor | None = None  # float32, as scales; of integers only
    table: torch.Tensor | None = None  # float32 [16]: the numbers of TABLE4_GROUPS

    def __post_init__(self) -> None:
        num_outputs, num_inputs = self.codes.shape
        if not self.format.has_groups or self.group_size % 2 or num_inputs % self.group_size:
            raise ValueError(f"{num_inputs} inputs are not whole groups of {self.group_size}, an even number")
        for values in (self.scales, self.offsets):
            if values is not None and values.shape != (num_outputs, num_inputs // self.group_size):
                raise ValueError(f"scales and offsets must be one per group, got {tuple(values.shape)}")


def pack_groups(weight: GroupedWeight, *, is_gated: bool = False) -> PackedWeight:
    """Pack it for the GEMM kernels; a gated one holds the gate's outputs first, as in `pack`."""
    num_outputs, in_features = weight.codes.shape
    num_groups = in_features // weight.group_size

    def in_panels(values: torch.Tensor) -> torch.Tensor:  # [num_panels, num_groups, inputs of a group, 32]
        by_output = padded(values, 1, is_gated=is_gated).view(
            -1, PANEL_WIDTH, num_groups, values.shape[1] // num_groups
        )
        return by_output.permute(0, 2, 3, 1)

    codes = in_panels(weight.codes.view(torch.uint8))
    if weight.format.has_four_bits:
        codes = (8 + codes if weight.format is WeightFormat.INT4_GROUPS and weight.offsets is None else codes) & 15
        codes = codes[:, :, 0::2] | codes[:, :, 1::2] << 4
    floats = [values for values in (weight.scales, weight.offsets) if values is not None]
    parts = [in_panels(values).contiguous().view(torch.uint8).flatten(2) for values in floats]
    return PackedWeight(
        format=weight.format,
        panels=torch.cat((*parts, codes.flatten(2)), -1).flatten(1),
        in_features=in_features,
        out_features=num_outputs // 2 if is_gated else num_outputs,
        is_gated=is_gated,
        has_offsets=weight.offsets is not None,
        group_size=weight.group_size,
        table=weight.table,
    )
