"""Llama (Touvron et al. 2023) and whatever shares its architecture, SmolLM2 among them."""

import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.attention.paged_attention import PagedAttention
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.embedding import TokenEmbedding
from rayinfer.layers.gated_mlp import GatedMLP
from rayinfer.layers.linear import Linear, StackedLinear
from rayinfer.layers.matrix import pack_matrices
from rayinfer.layers.rms_norm import RMSNorm
from rayinfer.layers.rotary_embedding import ROPE_TYPES, RotaryEmbedding
from rayinfer.models.decoder import WeightPlace
from rayinfer.models.model_config import ModelConfig
from rayinfer_kernels import ops

Angles = tuple[torch.Tensor, torch.Tensor]
_STACKED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


class LlamaAttention(torch.nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding) -> None:
        super().__init__()
        query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {"q_proj": query_width, "k_proj": kv_width, "v_proj": kv_width}
        self.qkv_proj = StackedLinear(config.hidden_size, parts, bias=config.attention_bias)
        self.o_proj = Linear(query_width, config.hidden_size, bias=config.attention_bias)
        self.attention = PagedAttention(config.head_dim)
        self._rotary = [rotary]  # in a list: the tables are shared, not this layer's own
        self._head_dim = config.head_dim

    def forward(self, x: torch.Tensor, angles: Angles, batch: AttentionBatch) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        stacked = self.qkv_proj.forward(x)
        parts = torch.split(stacked, self.qkv_proj.widths, -1)
        query, key, value = (part.view(len(x), -1, self._head_dim) for part in parts)
        rotary = self._rotary[0]
        query, key = rotary.forward(query, angles), rotary.forward(key, angles)
        attended = self.attention.forward(query, key, value, batch)
        return self.o_proj.forward(attended.flatten(1))


class LlamaLayer(torch.nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, rotary)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, residual: torch.Tensor, angles: Angles, batch: AttentionBatch) -> torch.Tensor:
        """Add x to the residual in place and return what the next layer must add; both [num_tokens, hidden_size]."""
        x = self.self_attn.forward(self.input_layernorm.forward(x, residual), angles, batch)
        return self.mlp.forward(self.post_attention_layernorm.forward(x, residual))


class LlamaModel(torch.nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size)
        layers = [LlamaLayer(config, self.rotary) for _ in range(config.num_layers)]
        self.layers = torch.nn.ModuleList(layers)
        self._layers = layers
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        x = self.embed_tokens.forward(token_ids)
        residual = torch.zeros_like(x)
        angles = self.rotary.angles(batch.positions)
        for layer in self._layers:
            x = layer.forward(x, residual, angles, batch)
        return self.norm.forward(x, residual)

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """Give each layer its pool of blocks."""
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            layer.self_attn.attention.bind(kv_cache)


class LlamaForCausalLM(torch.nn.Module):
    """The decoder with its output head, which may be the embedding itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.hidden_act != "silu":
            raise UnsupportedArchitecture(f"hidden_act {config.hidden_act!r} is not supported, only 'silu'")
        if (rope_type := config.rope.get("rope_type")) not in ROPE_TYPES:
            raise UnsupportedArchitecture(f"rope_type {rope_type!r} is not supported, only {', '.join(ROPE_TYPES)}")
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self._stacked_layers = {
            name: module for name, module in self.named_modules() if isinstance(module, StackedLinear)
        }

    def place_of(self, tensor_name: str) -> WeightPlace | None:
        """Stacked layers take their parts by rows; the rest keeps its name."""
        if tensor_name.endswith("rotary_emb.inv_freq") or (tensor_name == "lm_head.weight" and self.lm_head is None):
            return None
        path, _, kind = tensor_name.rpartition(".")
        parent, _, part = path.rpartition(".")
        name = f"{parent}.{_STACKED.get(part, part)}"
        stacked = self._stacked_layers.get(name)
        if stacked is None or part not in stacked.rows:
            return WeightPlace(tensor_name)
        return WeightPlace(f"{name}.{kind}", stacked.rows[part])

    def prepare(self, dtype: torch.dtype, device: torch.device, max_positions: int) -> None:
        """Compute the rotary tables and pack the weights."""
        pack_matrices(self)
        self.model.rotary.prepare(dtype, device, max_positions)

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """Give each layer its pool of blocks."""
        self.model.bind_kv_caches(kv_caches)

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """token_ids [num_tokens] -> last hidden states [num_tokens, hidden_size]."""
        return self.model.forward(token_ids, batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return head.multiply(hidden)
