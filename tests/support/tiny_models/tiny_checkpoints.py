"""Random tiny models in Hugging Face folders, made in well under a second, for tests that need a real checkpoint."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedConfig

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1 and 2

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TRAINING_TEXT = (
    "the quick brown fox jumps over the lazy dog while seven wizards quietly make toxic brew for the evil queen",
    "What is the capital of France? The capital of France is Paris, and the capital of Italy is Rome.",
    "def add(left, right):\n    return left + right\n\nfor index in range(10):\n    print(add(index, 1))\n",
    "Once upon a time there was a little house by the sea, where an old man told stories to the children.",
    "Die Straße ist länger als der Weg durch den Wald; où est la bibliothèque? ¿Dónde está la estación?",
)


def change_config(folder: Path, *, without: Collection[str] = (), **changes: Any) -> Path:
    """Change fields of a folder's config.json, and leave out those named by `without`."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in config if name not in without}))
    return folder


def make_tiny_llama(
    folder: Path,
    *,
    tie: bool = True,
    shards: int = 1,
    vocab_size: int = 384,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: str = "float32",
    seed: int = 0,
    **config: Any,
) -> Path:
    """Save a random Llama with a real byte-level tokenizer and a chat template in `folder`, and return `folder`.

    `config` goes to `LlamaConfig`. Weights are wide enough that greedy outputs vary and the best two logits differ.
    """
    settings: dict[str, Any] = {
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    settings |= config
    torch_dtype = getattr(torch, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab_size,
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                tie_word_embeddings=tie,
                dtype=torch_dtype,
                **settings,
            )
        ).to(torch_dtype)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    weights = {name: tensor for name, tensor in model.state_dict().items() if not (tie and name == "lm_head.weight")}
    save_weights(folder, weights, shards)
    save_tokenizer(folder, vocab_size, model.config.max_position_embeddings)
    return folder


def make_tiny_model(folder: Path, config: PreTrainedConfig, *, seed: int = 0) -> Path:
    """Save a random model of any architecture in `folder`, without a tokenizer, and return `folder`.

    Biases and norms, which transformers starts at 0 and 1, are disturbed so that their loss would show.
    """
    config.initializer_range = 0.15
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1 or name.endswith("_bias"):  # experts have a bias each
                    parameter += 0.3 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    return folder


def save_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int = 1) -> None:
    """Write `weights` as model.safetensors, or as `shards` files and their index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file_name)
    total_bytes = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def save_tokenizer(folder: Path, vocab_size: int, max_length: int = 512) -> None:
    """Train a byte-level BPE of at most `vocab_size` tokens on a few sentences and write its two files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
