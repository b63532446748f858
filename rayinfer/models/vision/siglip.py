"""SigLIP (Zhai et al. 2023) over square tiles, and Idefics3's connector (Laurençon et al. 2024) behind it.

Layers are torch's: one tile at a time, so an image's embeddings depend on nothing but the image.
"""

import torch
from torch.nn import functional

from rayinfer.models.vision.vision_config import VisionConfig


class SiglipAttention(torch.nn.Module):
    """Attention of all patches of a tile to each other."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self._num_heads = config.num_heads
        self.q_proj, self.k_proj = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.v_proj, self.out_proj = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_patches, hidden_size] -> the same shape."""
        num_patches, width = x.shape
        query, key, value = (
            projection(x).view(1, num_patches, self._num_heads, -1).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        out: torch.Tensor = self.out_proj(attended.transpose(1, 2).reshape(num_patches, width))
        return out


class SiglipMLP(torch.nn.Module):
    """Feed-forward of a layer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = torch.nn.Linear(config.intermediate_size, config.hidden_size)
        self._approximation = "tanh" if config.activation == "gelu_pytorch_tanh" else "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_patches, hidden_size] -> the same shape."""
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(x), approximate=self._approximation))
        return out


class SiglipLayer(torch.nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = SiglipAttention(config), SiglipMLP(config)
        self.layer_norm1 = torch.nn.LayerNorm(config.hidden_size, eps=config.eps)
        self.layer_norm2 = torch.nn.LayerNorm(config.hidden_size, eps=config.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_patches, hidden_size] -> the same shape."""
        x = x + self.self_attn.forward(self.layer_norm1(x))
        return x + self.mlp.forward(self.layer_norm2(x))


class SiglipEmbeddings(torch.nn.Module):
    """Patches of a tile as vectors, with a learned vector for each place."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._num_places = config.image_size // config.patch_size  # a side, in the table
        self._patch_size = config.patch_size
        self.patch_embedding = torch.nn.Conv2d(3, config.hidden_size, config.patch_size, config.patch_size)
        self.position_embedding = torch.nn.Embedding(self._num_places**2, config.hidden_size)

    def forward(self, tile: torch.Tensor) -> torch.Tensor:
        """tile [3, side, side] -> [num_patches, hidden_size]."""
        places = self._places(tile.shape[-1] // self._patch_size, tile.device)
        positions = (places[:, None] * self._num_places + places).flatten()
        patches = self.patch_embedding(tile[None])[0].flatten(1).T
        out: torch.Tensor = patches + self.position_embedding(positions)
        return out

    def _places(self, num_patches: int, device: torch.device) -> torch.Tensor:
        """Spread a row of patches over the places of the table, by transformers' arithmetic in float32."""
        borders = torch.arange(1 / self._num_places, 1.0, 1 / self._num_places, device=device)
        steps = torch.arange(num_patches, dtype=torch.float32, device=device) * (1.0 / torch.tensor(num_patches))
        return torch.bucketize(steps.clamp(max=1.0 - 1e-6), borders, right=True)


class SiglipEncoder(torch.nn.Module):
    """All layers of the encoder."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = SiglipEmbeddings(config)
        self.encoder = torch.nn.Module()  # as the checkpoints' names have it
        self._layers = [SiglipLayer(config) for _ in range(config.num_layers)]
        self.encoder.layers = torch.nn.ModuleList(self._layers)
        self.post_layernorm = torch.nn.LayerNorm(config.hidden_size, eps=config.eps)

    def forward(self, tile: torch.Tensor) -> torch.Tensor:
        """tile [3, side, side] -> [num_patches, hidden_size]."""
        x = self.embeddings.forward(tile)
        for layer in self._layers:
            x = layer.forward(x)
        out: torch.Tensor = self.post_layernorm(x)
        return out


class Connector(torch.nn.Module):
    """Squares of neighbouring patches as one vector each, in the language model's width (pixel shuffle)."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._factor = config.scale_factor
        self.modality_projection = torch.nn.Module()  # as the checkpoints' names have it
        self.modality_projection.proj = self._proj = torch.nn.Linear(
            config.hidden_size * config.scale_factor**2, config.text_hidden_size, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [side * side, hidden_size] -> [side * side / factor**2, text_hidden_size]."""
        side, factor, width = int(x.shape[0] ** 0.5), self._factor, x.shape[1]
        squares = x.view(side // factor, factor, side // factor, factor, width)
        out: torch.Tensor = self._proj(squares.transpose(1, 2).reshape(-1, factor * factor * width))
        return out
