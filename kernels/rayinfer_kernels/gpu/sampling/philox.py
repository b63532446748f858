"""Philox random numbers of the sampler, for all rows at once; defined in reference/philox.py."""

import torch

from rayinfer_kernels.gpu.language import tl, triton

_BLOCK = 128
_WORD = tl.constexpr(0xFFFFFFFF)


def uniform(seeds: torch.Tensor, positions: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
    """See `ops.uniform`."""
    out = torch.empty(len(seeds), dtype=torch.float64, device=seeds.device)
    if len(out):
        arguments = (seeds.contiguous(), positions.contiguous(), choices.contiguous(), out, len(out))
        _uniform_kernel[(-(-len(out) // _BLOCK),)](*arguments, block=_BLOCK, num_warps=4)
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _uniform_kernel(seeds, positions, choices, out, num_rows, block: tl.constexpr):
    row = tl.program_id(0) * block + tl.arange(0, block)
    is_row = row < num_rows
    seed = tl.load(seeds + row, mask=is_row, other=0)
    first = tl.load(positions + row, mask=is_row, other=0).to(tl.uint32)
    second = tl.load(choices + row, mask=is_row, other=0).to(tl.uint32)
    zeros = tl.zeros((block,), tl.uint32)
    word, _, _, _ = tl.philox_impl(first, second, zeros, zeros, seed.to(tl.uint32), (seed >> 32).to(tl.uint32))
    tl.store(out + row, word.to(tl.float64) / 4294967296.0, mask=is_row)
