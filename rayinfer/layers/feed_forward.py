"""The plain feed-forward part of a decoder layer."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.linear import FusedLinear, Linear
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


# The same functions by torch, whose bits may depend on where a number stands.
TORCH_ACTIVATIONS: Mapping[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]] = (
    MappingProxyType({ops.gelu: F.gelu, ops.gelu_tanh: partial(F.gelu, approximate="tanh")})
)

# The names that operations of several layers have for these functions, and for torch's of them.
KERNEL_ACTIVATIONS: Mapping[Callable[[torch.Tensor], torch.Tensor], str] = MappingProxyType(
    {
        ops.gelu: "gelu",
        ops.gelu_tanh: "gelu_tanh",
        torch.relu: "relu",
        F.silu: "silu",
        TORCH_ACTIVATIONS[ops.gelu]: "gelu",
        TORCH_ACTIVATIONS[ops.gelu_tanh]: "gelu_tanh",
    }
)


def find_activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function of this name; raises UnsupportedArchitecture for one that is not in ACTIVATIONS."""
    if name not in ACTIVATIONS:
        raise UnsupportedArchitecture(f"activation {name!r} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class FeedForward(torch.nn.Module, Shardable):
    """down(activation(up(x))); raises UnsupportedArchitecture for a name that is not in ACTIVATIONS."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        self.activation = find_activation(activation)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)
        self._intermediate_size = intermediate_size

    @property
    def kernel_activation(self) -> str | None:
        """The name of its activation in operations of several layers."""
        return KERNEL_ACTIVATIONS.get(self.activation)

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of what lies between up and down."""
        kept = shard_width(self._intermediate_size, shard)
        return self.up_proj.keep_outputs("up_proj", kept) | self.down_proj.keep_inputs("down_proj", kept, shard.group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        return self.down_proj.forward(self.activation(self.up_proj.forward(x)))


class GatedFeedForward(torch.nn.Module):
    """down(activation(gate) * up) of one matrix of both, for activations that `GatedMLP` has no kernel for."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str, *, bias: bool = False) -> None:
        super().__init__()
        self.activation = find_activation(activation)
        self.gate_up_proj = FusedLinear(hidden_size, [intermediate_size] * 2, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        gate, up = self.gate_up_proj.forward(x).chunk(2, -1)
        return self.down_proj.forward(self.activation(gate) * up)
