"""Vision encoders of Qwen2-VL (Wang et al. 2024) and Qwen2.5-VL (Bai et al. 2025).

The layers are those of the predictors' encoders, whose texts have no padding: here each window of an image is one. One
image is computed at a time, so its embeddings depend on nothing but the image.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from rayinfer.layers.checkpoint_slices import CheckpointSlice, checkpoint_slices, with_checkpoint_names
from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.linear import Linear
from rayinfer.layers.matrix import pack_matrices
from rayinfer.layers.norms import LayerNorm, RMSNorm
from rayinfer.layers.rotary_embedding import Angles, RotaryEmbedding
from rayinfer.models.vision.patches import Patches
from rayinfer.models.vision.qwen_config import QwenVisionConfig
from rayinfer_kernels import ops

EPS = 1e-6
_NAMES = {"attn.qkv_proj.": "attn.qkv.", "attn.o_proj.": "attn.proj."}  # ours to the checkpoint's


class PatchEmbedding(torch.nn.Module):
    """Patches as vectors."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        kernel = (config.num_frames, config.patch_size, config.patch_size)
        self.proj = torch.nn.Conv3d(3, config.hidden_size, kernel, kernel, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_patches, patch_width] -> [num_patches, hidden_size]."""
        return functional.linear(x, self.proj.weight.flatten(1))


class PlainMLP(torch.nn.Module):
    """Feed-forward of Qwen2-VL's layers."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_patches, hidden_size] -> the same shape."""
        gate = 1.702 * self.fc1.forward(x)
        # x sigmoid(1.702 x), by a kernel whose bits do not depend on the place in a batch as torch.sigmoid's do.
        return self.fc2.forward(ops.silu_and_mul(torch.cat([gate, torch.full_like(gate, 1 / 1.702)], -1)))


class VisionLayer(torch.nn.Module):
    """Attention within windows, or to all of an image, and a feed-forward, each behind a norm."""

    def __init__(self, config: QwenVisionConfig, rotary: RotaryEmbedding) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1, self.norm2 = _norm(config), _norm(config)
        self.attn = EncoderAttention(width, config.num_heads, config.head_dim, bias=True, rotary=rotary, is_fused=True)
        self.mlp = GatedMLP(width, config.intermediate_size, bias=True) if config.is_second else PlainMLP(config)

    def forward(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles) -> torch.Tensor:
        """x [num_patches, hidden_size], of windows of these lengths, -> the same shape."""
        x = x + self.attn.forward(self.norm1.forward(x), lengths, angles)
        return x + self.mlp.forward(self.norm2.forward(x))


class PatchMerger(torch.nn.Module):
    """Squares of neighbouring patches as one vector each, in the language model's width."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self._width = config.hidden_size * config.merge_size**2
        self.ln_q = _norm(config)
        first = Linear(self._width, self._width, bias=True)
        second = Linear(self._width, config.text_hidden_size, bias=True)
        self.mlp = torch.nn.ModuleDict({"0": first, "2": second})  # as the checkpoints' names have it
        self._first, self._second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_patches, hidden_size] -> [num_patches / merge_size**2, text_hidden_size]."""
        x = self._first.forward(self.ln_q.forward(x).view(-1, self._width))
        return self._second.forward(functional.gelu(x))


class QwenVisionEncoder(torch.nn.Module):
    """All layers of the encoder, and the merger behind them."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self._config = config
        rotary = RotaryEmbedding(config.head_dim, 0, {})  # whose angles are made here, of rows and columns
        self.patch_embed = PatchEmbedding(config)
        self._layers = [VisionLayer(config, rotary) for _ in range(config.num_layers)]
        self.blocks = torch.nn.ModuleList(self._layers)
        self.merger = PatchMerger(config)

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return with_checkpoint_names(_NAMES, checkpoint_slices(self))

    def prepare(self) -> None:
        """Pack the weights, once they are in."""
        pack_matrices(self)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Encode an image's values, [3, height, width] -> [num_embeddings, text_hidden_size], row by row."""
        config = self._config
        patches = Patches.of(values.shape[1], values.shape[2], config)
        windows = patches.windows.to(values.device)
        x = self.patch_embed.forward(patches.cut(values, config.num_frames)[windows])
        cos, sin = (table.to(x.device, x.dtype)[windows] for table in patches.angles(config))
        for index, layer in enumerate(self._layers):
            lengths = [len(x)] if index in config.layers_that_see_all else patches.window_lengths
            x = layer.forward(x, lengths, (cos, sin))
        return self.merger.forward(x)[patches.places.to(x.device)]


def _norm(config: QwenVisionConfig) -> RMSNorm | LayerNorm:
    return (RMSNorm if config.is_second else LayerNorm)(config.hidden_size, EPS)
