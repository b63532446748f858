"""The plain feed-forward part of a decoder layer."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.linear import Linear
from rayinfer.layers.shards import Shardable, ShardSlice, shard_width
from rayinfer.tensor_parallel import Shard
from rayinfer_kernels import ops

# By the names of config.json; transformers' spellings of one function differ in nothing but rounding.
ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "gelu": ops.gelu,
        "gelu_python": ops.gelu,
        "gelu_fast": ops.gelu_tanh,
        "gelu_new": ops.gelu_tanh,
        "gelu_pytorch_tanh": ops.gelu_tanh,
        "gelu_python_tanh": ops.gelu_tanh,
        "relu": torch.relu,
        "silu": torch.nn.functional.silu,
        "swish": torch.nn.functional.silu,
    }
)


class FeedForward(torch.nn.Module, Shardable):
    """down(activation(up(x))); raises UnsupportedArchitecture for a name that is not in ACTIVATIONS."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise UnsupportedArchitecture(f"activation {activation!r} is not supported, only {known}")
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)
        self._activation = ACTIVATIONS[activation]
        self._intermediate_size = intermediate_size

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of what lies between up and down."""
        kept = shard_width(self._intermediate_size, shard)
        return self.up_proj.keep_outputs("up_proj", kept) | self.down_proj.keep_inputs("down_proj", kept, shard.group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        return self.down_proj.forward(self._activation(self.up_proj.forward(x)))
