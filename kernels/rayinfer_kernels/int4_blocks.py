"""Numbers of four bits as packed weights keep them: of 32 outputs, in groups of 32 inputs that share a scale.

A block of 576 bytes is one group without offsets. Byte (j, n, i) of its first 512, [4, 32, 4], holds two numbers of
output n, each plus 8 to have no sign: that of input 4 j + i in its lower half, that of input 16 + 4 j + i in its upper
half. Then come the outputs' scales in bfloat16, those of outputs n and n + 16 as neighbors. So a register's worth of
bytes makes two registers of numbers, and one of scales makes two of float32, by masks and shifts alone.

A panel with offsets is all groups of 32 outputs. First comes a word for each output: in its upper half the unit of its
scales, in its lower half the ratio of the offsets' unit to that one, in bfloat16. Then, each filled up to whole cache
lines, come offsets plus 128, those of four groups of an output as neighbors [ceil(num_groups / 4), 32, 4]; scales
without a sign [num_groups, 32]; and the numbers of all groups, as in blocks. Scale and offset of a group fill 16 bits,
as a scale in bfloat16 alone does.
"""

import torch
import torch.nn.functional as F

GROUP_SIZE = 32  # inputs that share a scale
BLOCK_OUTPUTS = 32
ZERO = 8  # what stands for 0
_NUMBER_BYTES = GROUP_SIZE * BLOCK_OUTPUTS // 2
_ORDER = (4, BLOCK_OUTPUTS, 4)
_OFFSET_ZERO = 128
_UNIT_BYTES = BLOCK_OUTPUTS * 4
_GROUPS_PER_WORD, _GROUPS_PER_LINE = 4, 2  # of offsets, of scales


def pack_blocks(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Numbers int8 [n, 32, num_groups x 32] and scales [n, 32, num_groups] -> blocks uint8 [n, num_groups, 576]."""
    num_panels, _, num_groups = scales.shape
    pairs = scales.to(torch.bfloat16).view(num_panels, 2, 16, num_groups).permute(0, 3, 2, 1)
    return torch.cat((_pack_numbers(numbers, num_groups), pairs.contiguous().view(torch.uint8).flatten(2)), -1)


def _pack_numbers(numbers: torch.Tensor, num_groups: int) -> torch.Tensor:
    num_panels = len(numbers)
    unsigned = (numbers + ZERO).to(torch.uint8).view(num_panels, BLOCK_OUTPUTS, num_groups, 2, 4, 4)
    halves = unsigned.permute(0, 2, 3, 4, 1, 5)  # panel, group, half, j, n, i
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(2)


def pack_with_offsets(
    numbers: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor, units: torch.Tensor, ratios: torch.Tensor
) -> torch.Tensor:
    """Pack numbers as above, scales uint8, offsets int8 [n, 32, num_groups], units and ratios [n, 32] -> [n, bytes]."""
    num_panels, _, num_groups = scales.shape
    words = torch.stack((ratios, units), -1).to(torch.bfloat16).contiguous().view(torch.uint8).flatten(1)
    unsigned = F.pad(offsets.to(torch.int16) + _OFFSET_ZERO, (0, -num_groups % _GROUPS_PER_WORD)).to(torch.uint8)
    quads = unsigned.view(num_panels, BLOCK_OUTPUTS, -1, _GROUPS_PER_WORD).transpose(1, 2).flatten(1)
    by_group = F.pad(scales, (0, num_groups % _GROUPS_PER_LINE)).transpose(1, 2).flatten(1)
    return torch.cat((words, quads, by_group, _pack_numbers(numbers, num_groups).flatten(1)), -1)


def split_panels(panels: torch.Tensor, num_groups: int) -> tuple[torch.Tensor, ...]:
    """Panels with offsets uint8 [n, bytes] -> the same five, the numbers as `gather_numbers` wants them, in blocks."""
    num_panels = len(panels)
    quad_bytes = -(-num_groups // _GROUPS_PER_WORD) * _GROUPS_PER_WORD * BLOCK_OUTPUTS
    scale_bytes = -(-num_groups // _GROUPS_PER_LINE) * _GROUPS_PER_LINE * BLOCK_OUTPUTS
    sizes = [_UNIT_BYTES, quad_bytes, scale_bytes, num_groups * _NUMBER_BYTES]
    words, quads, by_group, numbers = torch.split(panels, sizes, -1)
    ratios, units = words.contiguous().view(torch.bfloat16).float().view(num_panels, BLOCK_OUTPUTS, 2).unbind(-1)
    unsigned = quads.reshape(num_panels, -1, BLOCK_OUTPUTS, _GROUPS_PER_WORD).transpose(1, 2).flatten(2)
    offsets = (unsigned[..., :num_groups].to(torch.int16) - _OFFSET_ZERO).to(torch.int8)
    scales = by_group.reshape(num_panels, -1, BLOCK_OUTPUTS)[:, :num_groups].transpose(1, 2)
    return numbers.reshape(num_panels, num_groups, _NUMBER_BYTES), scales, offsets, units, ratios


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
