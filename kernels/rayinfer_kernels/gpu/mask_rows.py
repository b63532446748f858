"""Bit masks of rows: what they forbid becomes -inf."""

import torch

from rayinfer_kernels.gpu.language import tl, triton
from rayinfer_kernels.reference.elementwise import check_mask

BLOCK = 2048  # columns of a program


def mask_rows_(rows: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor, *, block: int = BLOCK) -> None:
    """See `ops.mask_rows_`; `block` columns, a power of two, are masked together."""
    check_mask(rows, lines, masks)
    if rows.stride(-1) != 1 or masks.stride(-1) != 1:
        raise ValueError("rows and masks need their last axis in one piece")
    width = rows.shape[1]
    if len(lines) and width:
        grid = (len(lines), triton.cdiv(width, block))
        _mask_kernel[grid](rows, rows.stride(0), lines, masks, masks.stride(0), width, block=block)


@triton.jit
def _mask_kernel(rows, row_stride, lines, masks, mask_stride, width, block: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    line = tl.load(lines + index)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    words = tl.load(masks + index * mask_stride + (columns >> 5), mask=columns < width, other=-1)
    is_forbidden = ((words >> (columns & 31)) & 1) == 0
    never = tl.full((block,), float("-inf"), tl.float32)
    tl.store(rows + line * row_stride + columns, never, mask=is_forbidden & (columns < width))
