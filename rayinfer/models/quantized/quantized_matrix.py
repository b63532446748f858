"""A matrix of a published quantized checkpoint, whatever its format: codes, and the affine groups that scale them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

ROWS_AT_ONCE = 512  # that are dequantized together: so little memory is needed beside the result


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class QuantizedMatrix:
    """A weight [..., out_features, in_features]: the number of each code, times its group's scale, plus its offset.

    Without `input_groups` the inputs of a group lie side by side, and the last group may have fewer.
    """

    codes: torch.Tensor  # [..., out_features, in_features]: int8, float8_e4m3fn, or uint8 indices of `table`
    scales: torch.Tensor  # float32 [..., out_features, num_groups]
    group_size: int  # inputs of a group
    bits: int  # of a code; integers of four are -8 to 7 without offsets, 0 to 15 with them
    offsets: torch.Tensor | None = None  # float32, as scales
    table: torch.Tensor | None = None  # float32 [16]: the number that each code stands for
    input_groups: torch.Tensor | None = None  # int64 [in_features]: the group of each input

    def __post_init__(self) -> None:
        groups = -(-self.codes.shape[-1] // self.group_size)
        if self.input_groups is None and self.scales.shape != (*self.codes.shape[:-1], groups):
            raise ValueError(f"scales must be {(*self.codes.shape[:-1], groups)}, got {tuple(self.scales.shape)}")

    def rows(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield all rows, some at a time, dequantized: slices of the first axis, and float32 [..., in_features]."""
        for start in range(0, len(self.codes), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            codes = self.codes[part]
            numbers = codes.float() if self.table is None else self.table[codes.long()]
            numbers *= self._by_input(self.scales[part])
            if self.offsets is not None:
                numbers += self._by_input(self.offsets[part])
            yield part, numbers

    def dequantize(self) -> torch.Tensor:
        """Return the weight that it stands for, in float32."""
        weight = torch.empty(self.codes.shape)
        for part, numbers in self.rows():
            weight[part] = numbers
        return weight

    def _by_input(self, of_groups: torch.Tensor) -> torch.Tensor:
        if self.input_groups is not None:
            return of_groups[..., self.input_groups]
        return of_groups.repeat_interleave(self.group_size, -1)[..., : self.codes.shape[-1]]


def with_zero_points(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    bits: int,
    group_size: int,
    input_groups: torch.Tensor | None = None,
) -> QuantizedMatrix:
    """Make scale x (code - zero) of codes [out, in], unsigned, and zeros [out, num_groups] in the same numbers.

    Where every zero is the middle of the range, the weight has no offsets.
    """
    middle = 1 << bits - 1
    is_symmetric = bool((zeros == middle).all())
    shift = middle if is_symmetric or bits == 8 else 0  # eight bits need a sign to fit into int8
    offsets = None if is_symmetric else -(zeros.float() - shift) * scales
    return QuantizedMatrix(
        codes=(codes.to(torch.int16) - shift).to(torch.int8),
        scales=scales,
        group_size=group_size,
        bits=bits,
        offsets=offsets,
        input_groups=input_groups,
    )
