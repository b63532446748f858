"""Random LoRA adapters in the folders that PEFT writes, and base models with an adapter merged into their weights."""

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TRANSPOSED = ("c_attn", "c_proj", "c_fc")  # of GPT-2, whose matrices are [in_features, out_features]
# The linear layers of every tiny architecture, but for experts, their routers and the head.
LINEAR = r".*\.(q_proj|k_proj|v_proj|qkv_proj|o_proj|gate_up_proj|(?<!experts\.\d\.)(gate|up|down)_proj|c_attn|c_proj|c_fc|query_key_value|dense|dense_h_to_4h|dense_4h_to_h)"  # noqa: E501
WEIGHTS = "adapter_model.safetensors"


def linear_layers(model: Path, pattern: str = LINEAR) -> dict[str, tuple[int, int]]:
    """Return the layers of a checkpoint that match, with their numbers of outputs and inputs."""
    shapes: dict[str, tuple[int, int]] = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if name.endswith(".weight") and tensor.dim() == 2 and re.fullmatch(pattern, layer):
            rows, columns = tensor.shape
            shapes[layer] = (columns, rows) if layer.endswith(TRANSPOSED) else (rows, columns)
    return shapes


def make_adapter(
    folder: Path,
    model: Path,
    *,
    pattern: str = LINEAR,
    rank: int = 4,
    alpha: float = 6.0,
    ranks: Mapping[str, int] | None = None,
    seed: int = 0,
    size: float = 0.3,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> Path:
    """Save a random adapter of the layers that match `pattern`; `ranks` is rank_pattern, `size` how much it changes."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer, (num_outputs, num_inputs) in linear_layers(model, pattern).items():
        own = next((each for name, each in (ranks or {}).items() if layer.endswith(name)), rank)
        a = torch.randn(own, num_inputs, generator=generator) * num_inputs**-0.5
        b = torch.randn(num_outputs, own, generator=generator) * size
        tensors[f"base_model.model.{layer}.lora_A.weight"] = a.to(dtype)
        tensors[f"base_model.model.{layer}.lora_B.weight"] = b.to(dtype)
    config = {"r": rank, "lora_alpha": alpha, "target_modules": pattern, "rank_pattern": dict(ranks or {})}
    return save_adapter(folder, tensors, **config | settings)


def save_adapter(folder: Path, tensors: dict[str, torch.Tensor], **settings: Any) -> Path:
    """Save an adapter as PEFT does."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def merge_adapter(folder: Path, model: Path, adapter: Path) -> Path:
    """Copy a model with W + scale x B A in place of W, in float32; rsLoRA, rank_pattern and alpha_pattern included."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights, terms = load_file(model / "model.safetensors"), load_file(adapter / WEIGHTS)
    for name, a in terms.items():
        if not name.endswith(".lora_A.weight"):
            continue
        layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        b = terms[name.replace("lora_A", "lora_B")]
        alphas = config.get("alpha_pattern") or {}
        alpha = next((each for end, each in alphas.items() if layer.endswith(end)), config["lora_alpha"])
        scale = alpha / math.sqrt(len(a)) if config.get("use_rslora") else alpha / len(a)
        change = b.double() @ a.double() * scale
        weight = weights[f"{layer}.weight"]
        change = change.T if layer.endswith(TRANSPOSED) else change
        weights[f"{layer}.weight"] = (weight.double() + change).to(weight.dtype).contiguous()
    shutil.copytree(model, folder, dirs_exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
