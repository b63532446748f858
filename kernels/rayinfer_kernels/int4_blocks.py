"""Numbers of four bits as packed weights keep them: blocks of 32 inputs by 32 outputs, each with its scales.

A block is 576 bytes. Byte (j, n, i) of its first 512, [4, 32, 4], holds two numbers of output n, each plus 8 to have
no sign: that of input 4 j + i in its lower half, that of input 16 + 4 j + i in its upper half. Then come the outputs'
scales in bfloat16, those of outputs n and n + 16 as neighbors. So a register's worth of bytes makes two registers of
numbers, and one of scales makes two of float32, by masks and shifts alone.
"""

import torch

GROUP_SIZE = 32  # inputs that share a scale
BLOCK_OUTPUTS = 32
ZERO = 8  # what stands for 0
_NUMBER_BYTES = GROUP_SIZE * BLOCK_OUTPUTS // 2
_ORDER = (4, BLOCK_OUTPUTS, 4)


def pack_blocks(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Numbers int8 [n, 32, num_groups x 32] and scales [n, 32, num_groups] -> blocks uint8 [n, num_groups, 576]."""
    num_panels, _, num_groups = scales.shape
    unsigned = (numbers + ZERO).to(torch.uint8).view(num_panels, BLOCK_OUTPUTS, num_groups, 2, 4, 4)
    halves = unsigned.permute(0, 2, 3, 4, 1, 5)  # panel, group, half, j, n, i
    both = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(2)
    pairs = scales.to(torch.bfloat16).view(num_panels, 2, 16, num_groups).permute(0, 3, 2, 1)
    return torch.cat((both, pairs.contiguous().view(torch.uint8).flatten(2)), -1)


def gather_numbers(blocks: torch.Tensor, panels: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Numbers of outputs `columns` [n] of `panels` [n]: blocks [num_panels, num_groups, 576] -> int8 [n, inputs]."""
    numbers = blocks[..., :_NUMBER_BYTES]
    both = numbers.view(*blocks.shape[:2], *_ORDER)[panels, :, :, columns].flatten(2)  # [n, num_groups, 16]
    return torch.cat((both & 15, both >> 4), -1).flatten(1).to(torch.int8) - ZERO


def gather_scales(blocks: torch.Tensor, panels: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Scales of the same outputs: float32 [n, num_groups]."""
    pairs = blocks[..., _NUMBER_BYTES:].view(torch.bfloat16).view(*blocks.shape[:2], 16, 2)
    taken: torch.Tensor = pairs[panels, :, columns % 16, columns // 16]
    return taken.float()
