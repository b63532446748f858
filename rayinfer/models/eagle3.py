"""Heads of EAGLE-3 (Li et al. 2025): a decoder layer that guesses on from hidden states of the model it belongs to."""

from collections.abc import Mapping
from pathlib import Path

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.errors import ModelLoadError
from rayinfer.layers.checkpoint_slices import CheckpointSlice, checkpoint_slices
from rayinfer.layers.embedding import TokenEmbedding
from rayinfer.layers.linear import Linear
from rayinfer.layers.matrix import pack_matrices
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.layers.self_attention import SelfAttention
from rayinfer.models.architectures.llama_layers import gated_mlp
from rayinfer.models.checkpoints.checkpoint import Checkpoint
from rayinfer.models.config_fields import count, read_json
from rayinfer.models.loader import fill_model
from rayinfer.models.model_config import ModelConfig, model_config_of
from rayinfer_kernels import ops

ARCHITECTURE = "LlamaForCausalLMEagle3"
_NUM_LAYERS_READ = 3
_TO_MODEL, _TO_HEAD = "d2t", "t2d"  # tensors: what to add to the head's token ids; whether the head has a token
_EMBEDDING = "embed_tokens.weight"


def is_eagle3_folder(folder: Path) -> bool:
    """Return whether a folder holds such a head."""
    return (folder / "config.json").is_file() and read_json(folder / "config.json").get("architectures") == [
        ARCHITECTURE
    ]


def layers_read(num_layers: int) -> tuple[int, ...]:
    """Return the layers of the model whose inputs heads were trained with: a low, a middle and a high one."""
    return 2, num_layers // 2, num_layers - 3


class _HeadLayer(torch.nn.Module):
    """Decoder layer whose attention reads a token's embedding beside its hidden state."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding) -> None:
        super().__init__()
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        self.self_attn = SelfAttention(2 * config.hidden_size, *heads, rotary=rotary)
        self.self_attn.o_proj = Linear(config.num_heads * config.head_dim, config.hidden_size)
        self.mlp = gated_mlp(config)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3)
        )


class Eagle3Head(torch.nn.Module):
    """The head: `reduce` what was read of the model, `forward` token by token, `likeliest` of its vocabulary."""

    def __init__(self, config: ModelConfig, num_tokens: int, *, has_embedding: bool) -> None:
        super().__init__()
        self.config = config
        self._rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        self.fc = Linear(_NUM_LAYERS_READ * config.hidden_size, config.hidden_size)
        self.midlayer = _HeadLayer(config, self._rotary)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, num_tokens)
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size) if has_embedding else None
        self.token_ids = torch.arange(num_tokens)  # of the model, by the head's own

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return checkpoint_slices(self)

    def known_name(self, tensor_name: str) -> str | None:
        """See Decoder."""
        return None if tensor_name in (_TO_MODEL, _TO_HEAD) else tensor_name

    def prepare(self, dtype: torch.dtype, device: torch.device, max_positions: int) -> None:
        """Pack the weights and compute the rotary tables."""
        pack_matrices(self)
        self._rotary.prepare(dtype, device, max_positions, max_positions)

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """Give its one layer a pool of blocks; none takes it away."""
        for kv_cache in kv_caches:
            self.midlayer.self_attn.attention.bind(kv_cache)

    def reduce(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states of the layers read, side by side [num_tokens, 3 x hidden_size] -> [num_tokens, hidden_size]."""
        return self.fc.forward(states)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """Guess on: each token's embedding, and the hidden state of the token before it -> its own hidden state."""
        layer = self.midlayer
        x = torch.cat((layer.input_layernorm.forward(embedded), layer.hidden_norm.forward(hidden)), -1)
        total = hidden + layer.self_attn.forward(x, self._rotary.angles(batch.positions), batch)
        return total + layer.mlp.forward(layer.post_attention_layernorm.forward(total))

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [num_rows, hidden_size] -> the model's ids of the likeliest next tokens, [num_rows]."""
        return self.token_ids[self.lm_head.forward(self.norm.forward(hidden)).argmax(-1)]


def read_eagle3_config(folder: Path) -> ModelConfig:
    """Read a head's config.json; raises ModelLoadError."""
    return model_config_of(folder, ARCHITECTURE)


def load_eagle3_head(folder: Path, dtype: torch.dtype, device: torch.device) -> Eagle3Head:
    """Load a head; without embeddings of its own it has none, and reads the model's. Raises ModelLoadError."""
    config, checkpoint = read_eagle3_config(folder), Checkpoint(folder)
    num_tokens = count(config.raw, "draft_vocab_size", default=config.vocab_size)
    with torch.device("meta"):
        head = Eagle3Head(config, num_tokens, has_embedding=_EMBEDDING in checkpoint.tensor_names)
    fill_model(head, folder, dtype, device)
    head.token_ids = torch.arange(num_tokens)
    if _TO_MODEL in checkpoint.tensor_names:
        offsets = checkpoint.read(_TO_MODEL).to(torch.int64)
        if offsets.shape != (num_tokens,):
            raise ModelLoadError(
                f"{folder}: tensor {_TO_MODEL} has shape {tuple(offsets.shape)}, expected ({num_tokens},)"
            )
        head.token_ids = head.token_ids + offsets
    elif num_tokens != config.vocab_size:
        raise ModelLoadError(f"{folder}: the checkpoint lacks {_TO_MODEL}, and draft_vocab_size is not vocab_size")
    if not 0 <= int(head.token_ids.min()) <= int(head.token_ids.max()) < config.vocab_size:
        raise ModelLoadError(
            f"{folder}: tensor {_TO_MODEL} names tokens that the vocabulary of {config.vocab_size} lacks"
        )
    return head.eval()
