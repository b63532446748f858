"""Sentence embeddings: pooling and dense layers behind a model's hidden states."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from rayinfer.layers.checkpoint_slices import CheckpointSlice
from rayinfer.layers.linear import Linear
from rayinfer.models.encoders.pooling import Pooling, pool
from rayinfer.models.encoders.sentence_layout import DenseLayer, SentenceLayout
from rayinfer.models.loader import fill_model

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "none": lambda x: x,
        "tanh": torch.tanh,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
    }
)


class SentenceEmbedding(torch.nn.Module):
    """Pooling, then dense layers; normalization is left to readers."""

    def __init__(self, pooling: Pooling, dense: Sequence["Dense"]) -> None:
        super().__init__()
        self.dense = torch.nn.ModuleList(dense)
        self.pooling = pooling

    def forward(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Hidden [num_tokens, hidden_size] of texts of these lengths -> [num_texts, embedding_size]."""
        return self.project(pool(hidden, lengths, self.pooling))

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Run the dense layers: pooled x [num_texts, hidden_size] -> [num_texts, embedding_size]."""
        for layer in self.dense:
            x = layer.forward(x)
        return x


class Dense(torch.nn.Module):
    """activation(linear(x)), under the names of its own checkpoint."""

    def __init__(self, layer: DenseLayer) -> None:
        super().__init__()
        self.linear = Linear(layer.in_features, layer.out_features, bias=layer.has_bias)
        self._activation = _ACTIVATIONS[layer.activation]

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """Name the tensors that the checkpoint must hold."""
        return {name: CheckpointSlice(name) for name, _ in self.named_parameters()}

    def known_name(self, tensor_name: str) -> str | None:
        """Return the name as it is."""
        return tensor_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_texts, in_features] -> [num_texts, out_features]."""
        return self._activation(self.linear.forward(x))


def load_sentence_embedding(layout: SentenceLayout, dtype: torch.dtype, device: torch.device) -> SentenceEmbedding:
    """Read the dense layers; raises ModelLoadError."""
    layers = []
    for layer in layout.dense:
        with torch.device("meta"):
            dense = Dense(layer)
        fill_model(dense, layer.folder, dtype, device)
        layers.append(dense)
    return SentenceEmbedding(layout.pooling, layers).eval()
