"""Qwen3 in plain torch for the minimal loop: merged projections, packed tokens, attention passed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

# (layer, queries [tokens, heads, head_dim], keys, values [tokens, kv_heads, head_dim]) -> [tokens, heads * head_dim]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def add_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add to the residual stream and normalize the sum."""
    total = hidden + residual
    return functional.rms_norm(total, weight.shape, weight, epsilon), total


def norm_rotate(
    heads: torch.Tensor, weight: torch.Tensor, epsilon: float, cosines: torch.Tensor, sines: torch.Tensor
) -> torch.Tensor:
    """Normalize each head and apply rotary position embedding."""
    first, second = functional.rms_norm(heads, weight.shape, weight, epsilon).float().chunk(2, dim=-1)
    cosines, sines = cosines[:, None], sines[:, None]
    rotated = torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
    return rotated.to(heads.dtype)


def silu_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """Apply SiLU to the first half and multiply by the second."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def sample(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Sample one token a row by the Gumbel-max method."""
    exponential = torch.empty_like(logits, dtype=torch.float32).exponential_()
    return (logits.float() / temperature - exponential.log()).argmax(dim=-1)


@dataclass(frozen=True, slots=True)
class Operations:
    """The element-wise operations, as they are or compiled."""

    add_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]] = add_norm
    norm_rotate: Callable[..., torch.Tensor] = norm_rotate
    silu_multiply: Callable[..., torch.Tensor] = silu_multiply
    sample: Callable[..., torch.Tensor] = sample

    @classmethod
    def compiled(cls) -> "Operations":
        """Fuse each operation by torch.compile."""
        return cls(
            torch.compile(add_norm), torch.compile(norm_rotate), torch.compile(silu_multiply), torch.compile(sample)
        )


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer; queries, keys and values are one matrix, and so are gate and up."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    output: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class NanoModel:
    """A Qwen3 decoder with random weights, or with those of a transformers state dict."""

    def __init__(
        self,
        config: Mapping[str, Any],
        dtype: torch.dtype,
        device: torch.device,
        operations: Operations,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.num_layers, self.head_dim = config["num_hidden_layers"], config["head_dim"]
        self.num_heads, self.num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dtype, self.device, self.operations = dtype, device, operations
        self._epsilon, self._hidden_size = config["rms_norm_eps"], config["hidden_size"]
        self._feed_forward, self.vocab_size = config["intermediate_size"], config["vocab_size"]
        self._state = state
        self._layers = [self._layer(f"model.layers.{number}.") for number in range(self.num_layers)]
        self._norm = self._weight("model.norm.weight", self._hidden_size)
        self._embedding = self._weight("model.embed_tokens.weight", self.vocab_size, self._hidden_size)
        is_tied = config["tie_word_embeddings"]
        self._head = self._embedding if is_tied else self._weight("lm_head.weight", *self._embedding.shape)
        self._state = None
        exponents = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32) / self.head_dim
        self._frequencies = config["rope_theta"] ** -exponents

    @torch.no_grad()
    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Compute the hidden states of packed tokens, normalized for the head."""
        run = self.operations
        angles = positions[:, None] * self._frequencies
        cosines, sines = angles.cos(), angles.sin()
        hidden = functional.embedding(tokens, self._embedding)
        residual = torch.zeros_like(hidden)
        sizes = [count * self.head_dim for count in (self.num_heads, self.num_kv_heads, self.num_kv_heads)]
        for number, layer in enumerate(self._layers):
            hidden, residual = run.add_norm(hidden, residual, layer.input_norm, self._epsilon)
            queries, keys, values = (
                part.view(len(tokens), -1, self.head_dim)
                for part in torch.split(functional.linear(hidden, layer.qkv), sizes, dim=-1)
            )
            queries = run.norm_rotate(queries, layer.query_norm, self._epsilon, cosines, sines)
            keys = run.norm_rotate(keys, layer.key_norm, self._epsilon, cosines, sines)
            hidden = functional.linear(attend(number, queries, keys, values), layer.output)
            hidden, residual = run.add_norm(hidden, residual, layer.post_norm, self._epsilon)
            hidden = functional.linear(run.silu_multiply(functional.linear(hidden, layer.gate_up)), layer.down)
        return run.add_norm(hidden, residual, self._norm, self._epsilon)[0]

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the logits of hidden states."""
        return functional.linear(hidden, self._head)

    def _layer(self, prefix: str) -> LayerWeights:
        hidden, heads, inner = self._hidden_size, self.num_heads * self.head_dim, self._feed_forward
        kv_heads = self.num_kv_heads * self.head_dim

        def matrix(names: Mapping[str, int], columns: int) -> torch.Tensor:
            parts = [self._weight(f"{prefix}{name}.weight", rows, columns) for name, rows in names.items()]
            return torch.cat(parts) if len(parts) > 1 else parts[0]

        return LayerWeights(
            input_norm=self._weight(f"{prefix}input_layernorm.weight", hidden),
            qkv=matrix({f"self_attn.{x}_proj": n for x, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))}, hidden),
            query_norm=self._weight(f"{prefix}self_attn.q_norm.weight", self.head_dim),
            key_norm=self._weight(f"{prefix}self_attn.k_norm.weight", self.head_dim),
            output=matrix({"self_attn.o_proj": hidden}, heads),
            post_norm=self._weight(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=matrix({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden),
            down=matrix({"mlp.down_proj": hidden}, inner),
        )

    def _weight(self, name: str, *shape: int) -> torch.Tensor:
        if self._state is not None:
            return self._state[name].detach().to(self.device, self.dtype)
        if len(shape) == 1:
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        return torch.empty(shape, dtype=self.dtype, device=self.device).normal_(0.0, 0.02)
