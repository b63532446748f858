"""The gated feed-forward part of a decoder layer."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.linear import FusedLinear, Linear, StackedLinear
from rayinfer.layers.shards import Shardable, ShardSlice, shard_width, shifted
from rayinfer.tensor_parallel import Shard
from rayinfer_kernels import ops

# By the names of config.json.
GATES: Mapping[str, ops.Gate] = MappingProxyType({"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"})


class GatedMLP(torch.nn.Module, Shardable):
    """down(activation(gate(x)) * up(x)); `is_fused`: the checkpoint holds gate and up in one tensor.

    Raises UnsupportedArchitecture for an activation that is not in GATES.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        is_fused: bool = False,
    ) -> None:
        super().__init__()
        if activation not in GATES:
            raise UnsupportedArchitecture(
                f"activation {activation!r} is not supported as a gate, only {', '.join(GATES)}"
            )
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj: StackedLinear | FusedLinear
        if is_fused:
            self.gate_up_proj = FusedLinear(hidden_size, list(parts.values()), bias=bias, is_gated=True)
        else:
            self.gate_up_proj = StackedLinear(hidden_size, parts, bias=bias, is_gated=True)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)
        self.activation = GATES[activation]

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of what lies between gate and down."""
        intermediate_size = self.gate_up_proj.widths[0]
        kept = shard_width(intermediate_size, shard)
        cuts = self.gate_up_proj.keep_outputs("gate_up_proj", kept, shifted(kept, intermediate_size))
        self.gate_up_proj.widths = [len(kept)] * 2
        return cuts | self.down_proj.keep_inputs("down_proj", kept, shard.group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        return self.down_proj.forward(self.gate_up_proj.gate(x, self.activation))
