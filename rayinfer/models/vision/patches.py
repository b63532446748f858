"""Patches of an image: their order, the windows that they form, and their rotary angles."""

from dataclasses import dataclass

import torch

from rayinfer.layers.rotary_embedding import Angles
from rayinfer.models.vision.qwen_config import QwenVisionConfig


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of one image: squares of them that become one embedding lie together, row by row.

    A layer computes them window by window.
    """

    num_rows: int  # of patches
    num_columns: int
    merge_size: int
    windows: torch.Tensor  # int64 [num_patches], the patches in the windows' order
    window_lengths: list[int]  # patches of each window
    places: torch.Tensor  # int64 [num_embeddings], of each embedding in the windows' order

    @staticmethod
    def of(height: int, width: int, config: QwenVisionConfig) -> "Patches":
        """Lay out the patches of an image of this size in pixels."""
        merge, num_rows, num_columns = config.merge_size, height // config.patch_size, width // config.patch_size
        embeddings = torch.arange(num_rows * num_columns // merge**2).view(num_rows // merge, num_columns // merge)
        side = config.window_size // merge // config.patch_size  # in embeddings
        windows = [part.flatten() for band in torch.split(embeddings, side) for part in torch.split(band, side, 1)]
        order = torch.cat(windows)
        return Patches(
            num_rows=num_rows,
            num_columns=num_columns,
            merge_size=merge,
            windows=(order[:, None] * merge**2 + torch.arange(merge**2)).flatten(),
            window_lengths=[len(window) * merge**2 for window in windows],
            places=order.argsort(),
        )

    def cut(self, values: torch.Tensor, num_frames: int) -> torch.Tensor:
        """Cut an image [3, height, width] into patches, each for so many equal frames: [num_patches, patch_width]."""
        side, merge = values.shape[1] // self.num_rows, self.merge_size
        squares = values.view(3, self.num_rows // merge, merge, side, self.num_columns // merge, merge, side)
        frame = squares.permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, 1, side * side)
        return frame.expand(-1, -1, num_frames, -1).flatten(1)

    def angles(self, config: QwenVisionConfig) -> Angles:
        """Cosines and sines, float32 [num_patches, head_dim]: half of a head's pairs rotate by row, half by column."""
        quarter = torch.arange(0, config.head_dim // 2, 2, dtype=torch.float32) / (config.head_dim // 2)
        frequencies = 1.0 / config.rope_theta**quarter
        rows, columns = torch.meshgrid(torch.arange(self.num_rows), torch.arange(self.num_columns), indexing="ij")
        angles = torch.cat([self._in_squares(places)[:, None] * frequencies for places in (rows, columns)], -1).repeat(
            1, 2
        )
        return angles.cos(), angles.sin()

    def _in_squares(self, places: torch.Tensor) -> torch.Tensor:
        merge = self.merge_size
        squares = places.view(self.num_rows // merge, merge, self.num_columns // merge, merge)
        return squares.transpose(1, 2).flatten().float()
