"""Random EAGLE-3 heads in the layout in which they are published, and what such a head computes, in plain torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

EPS = 1e-6
THETA = 10_000.0


class HeadShape(NamedTuple):
    """Sizes of a head."""

    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 384
    draft_vocab: int = 100


TINY = HeadShape()


def make_tiny_eagle3(
    folder: Path, shape: HeadShape = TINY, *, seed: int = 5, has_embedding: bool = False, **config: object
) -> Path:
    """Save a random head in `folder`, and return `folder`."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator) * 0.15

    hidden, query, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {
        "fc.weight": random(hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": random(query, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": random(kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": random(kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": random(hidden, query),
        "midlayer.mlp.gate_proj.weight": random(2 * hidden, hidden),
        "midlayer.mlp.up_proj.weight": random(2 * hidden, hidden),
        "midlayer.mlp.down_proj.weight": random(hidden, 2 * hidden),
        "lm_head.weight": random(shape.draft_vocab, hidden),
    }
    for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        weights[f"{name}.weight"] = 1 + random(hidden)
    chosen = torch.randperm(shape.vocab, generator=generator)[: shape.draft_vocab].sort().values
    weights["d2t"] = chosen - torch.arange(shape.draft_vocab)
    weights["t2d"] = torch.isin(torch.arange(shape.vocab), chosen)
    if has_embedding:
        weights["embed_tokens.weight"] = random(shape.vocab, hidden)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "vocab_size": shape.vocab,
        "draft_vocab_size": shape.draft_vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
    }
    (folder / "config.json").write_text(json.dumps(settings | config))
    return folder


class PlainHead:
    """A head that computes everything anew for each draft."""

    def __init__(self, folder: Path, embedding: torch.Tensor, shape: HeadShape = TINY) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self._embedding = self.weights.get("embed_tokens.weight", embedding)
        self._shape = shape

    def drafts(self, token_ids: Sequence[int], states: torch.Tensor, limit: int) -> list[int]:
        """Guess on from tokens and the model's states of all but the last, [len(token_ids) - 1, 3 x hidden]."""
        hidden = states @ self.weights["fc.weight"].T
        known, found = list(token_ids), []
        for _ in range(limit):
            out = self.forward(torch.tensor(known[1:]), hidden)
            index = int(self.logits(out[-1:]).argmax())
            found.append(index + int(self.weights["d2t"][index]))
            known.append(found[-1])
            hidden = torch.cat((hidden, out[-1:]))
        return found

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the head's own tokens."""
        return self._norm(hidden, "norm") @ self.weights["lm_head.weight"].T

    def forward(self, token_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The decoder layer over one sequence."""
        weights, shape, count = self.weights, self._shape, len(token_ids)
        embedded = self._norm(self._embedding[token_ids], "midlayer.input_layernorm")
        x = torch.cat((embedded, self._norm(hidden, "midlayer.hidden_norm")), -1)
        query, key, value = (
            (x @ weights[f"midlayer.self_attn.{name}_proj.weight"].T).view(count, -1, shape.head_dim).transpose(0, 1)
            for name in "qkv"
        )
        groups = shape.heads // shape.kv_heads
        attended = F.scaled_dot_product_attention(
            _rotated(query),
            _rotated(key).repeat_interleave(groups, 0),
            value.repeat_interleave(groups, 0),
            is_causal=True,
        )
        total = hidden + attended.transpose(0, 1).flatten(1) @ weights["midlayer.self_attn.o_proj.weight"].T
        normed = self._norm(total, "midlayer.post_attention_layernorm")
        gate, up = (normed @ weights[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return total + (F.silu(gate) * up) @ weights["midlayer.mlp.down_proj.weight"].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.weights[f"{name}.weight"]


def _rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turning = THETA ** (-torch.arange(half) / half)
    angles = torch.outer(torch.arange(x.shape[1]).float(), turning).repeat(1, 2)
    swapped = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angles.cos() + swapped * angles.sin()
