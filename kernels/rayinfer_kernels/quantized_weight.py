"""Weights as small integers with scales: how they are chosen by rounding, and how they are packed for products."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rayinfer_kernels.int4_blocks import GROUP_SIZE, pack_blocks, pack_with_offsets
from rayinfer_kernels.packed_weight import PANEL_WIDTH, GroupOffsets, PackedWeight, WeightFormat, in_panels, padded
from rayinfer_kernels.reference.float8 import MULTIPLE, quantize_rows

INT8_LIMIT = 127
INT4_LOWEST, INT4_HIGHEST = -8, 7


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """A weight [..., out_features, in_features], of one or several layers, as q times scales."""

    q: torch.Tensor  # int8 [..., out_features, in_features]; of four bits, from -8 to 7
    # float32 [..., out_features] or, of four bits, [..., out_features, ceil(in_features / 32)] in values of bfloat16.
    scales: torch.Tensor
    format: WeightFormat
    # Of four bits only: what is added to weights of each group, and the whole numbers that `scales` are of a unit.
    offsets: GroupOffsets | None = None

    def dequantize(self) -> torch.Tensor:
        """The weight that it stands for, in float32."""
        if self.format is not WeightFormat.INT4_DYNAMIC:
            return self.q * self.scales[..., None]
        weight = self.q * self._by_input(self.scales)
        return weight if self.offsets is None else weight + self._by_input(self.offsets.dequantize())

    def _by_input(self, of_groups: torch.Tensor) -> torch.Tensor:
        return of_groups.repeat_interleave(GROUP_SIZE, -1)[..., : self.q.shape[-1]]


def quantize(weight: torch.Tensor, format: WeightFormat, largest: torch.Tensor | None = None) -> QuantizedWeight:
    """Round a weight [..., out_features, in_features] to the nearest multiples of its scales, around 0.

    With eight bits an output has one scale, with four each 32 of its inputs have one. Where there are only some of the
    inputs, `largest` [..., out_features] says for eight bits how large an output's numbers are among all of them.
    """
    if format is not WeightFormat.INT4_DYNAMIC:
        scales = (_largest(weight) if largest is None else largest) / INT8_LIMIT
        return QuantizedWeight(_rounded(weight, scales[..., None], -INT8_LIMIT, INT8_LIMIT), scales, format)
    groups = F.pad(weight, (0, -weight.shape[-1] % GROUP_SIZE)).reshape(*weight.shape[:-1], -1, GROUP_SIZE)
    # Rounded first, so that the numbers are chosen for the scale that they will be multiplied with.
    scales = (_largest(groups) / INT4_HIGHEST).to(torch.bfloat16).float()
    q = _rounded(groups, scales[..., None], INT4_LOWEST, INT4_HIGHEST).flatten(-2)
    return QuantizedWeight(q[..., : weight.shape[-1]].contiguous(), scales, format)


def pack_quantized(quantized: QuantizedWeight, *, is_gated: bool = False) -> PackedWeight:
    """Pack it into the GEMM kernels' layout; a gated one holds the gate's outputs first, as in `pack`."""
    num_outputs, in_features = quantized.q.shape[-2:]
    is_int4 = quantized.format is WeightFormat.INT4_DYNAMIC
    return PackedWeight(
        format=quantized.format,
        panels=_int4_panels(quantized, is_gated) if is_int4 else in_panels(quantized.q.clone(), 4, is_gated=is_gated),
        in_features=in_features,
        out_features=num_outputs // 2 if is_gated else num_outputs,
        is_gated=is_gated,
        scales=None if is_int4 else _by_output(quantized.scales, is_gated),
        sums=None if is_int4 else _by_output(quantized.q.sum(-1, dtype=torch.int32), is_gated),
        has_offsets=quantized.offsets is not None,
    )


def quantize_float8(weight: torch.Tensor, *, is_gated: bool = False) -> PackedWeight:
    """Round a weight [out_features, in_features] to e4m3 with a scale per output, as GPUs multiply it."""
    num_outputs, in_features = weight.shape
    rows = quantize_rows(F.pad(weight, (0, 0, 0, -num_outputs % MULTIPLE)))
    return PackedWeight(
        format=WeightFormat.FLOAT8_DYNAMIC,
        panels=rows.numbers,
        in_features=in_features,
        out_features=num_outputs // 2 if is_gated else num_outputs,
        is_gated=is_gated,
        scales=rows.scales,
    )


def unpack_quantized(packed: PackedWeight) -> QuantizedWeight:
    """Return the numbers and scales that a layer was packed from, or several layers of eight bits."""
    if not packed.format.has_four_bits and packed.panels.dim() > 4:
        layers = [unpack_quantized(packed.layer(index)) for index in range(len(packed.panels))]
        q, scales = (torch.stack([getattr(layer, part) for layer in layers]) for part in ("q", "scales"))
        return QuantizedWeight(q, scales, packed.format)
    indices = torch.arange(packed.num_rows, device=packed.panels.device)
    return QuantizedWeight(*packed.quantized_rows(indices), packed.format, packed.group_offsets(indices))


def _largest(weight: torch.Tensor) -> torch.Tensor:
    return weight.float().abs().amax(-1) if weight.shape[-1] else weight.new_zeros(weight.shape[:-1]).float()


def _rounded(weight: torch.Tensor, scales: torch.Tensor, lowest: int, highest: int) -> torch.Tensor:
    ratios = weight.float() / torch.where(scales > 0, scales, 1.0)
    return ratios.round().clamp(lowest, highest).to(torch.int8)


def _int4_panels(quantized: QuantizedWeight, is_gated: bool) -> torch.Tensor:
    layers, num_groups = quantized.q.shape[:-2], quantized.scales.shape[-1]
    q = padded(quantized.q, GROUP_SIZE, is_gated=is_gated).reshape(-1, PANEL_WIDTH, num_groups * GROUP_SIZE)

    def by_panel(values: torch.Tensor) -> torch.Tensor:
        return padded(values, 1, is_gated=is_gated).reshape(-1, PANEL_WIDTH, num_groups)

    if (offsets := quantized.offsets) is not None:
        units, ratios = (_by_output(each, is_gated).view(-1, PANEL_WIDTH) for each in (offsets.units, offsets.ratios))
        panels = pack_with_offsets(q, by_panel(offsets.scale_q), by_panel(offsets.q), units, ratios)
        return panels.view(*layers, -1, panels.shape[1])
    blocks = pack_blocks(q, by_panel(quantized.scales))
    return blocks.view(*layers, -1, *blocks.shape[1:])


def _by_output(values: torch.Tensor, is_gated: bool) -> torch.Tensor:
    return padded(values[..., None], 1, is_gated=is_gated)[..., 0].contiguous()
