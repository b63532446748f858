"""Random LoRA adapters of a checkpoint's layers, in the folders that PEFT writes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from rayinfer.adapters.target_layers import TargetLayers
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.adapter_id import CONFIG_FILE, WEIGHTS_FILE
from rayinfer.models.loader import empty_decoder

TARGETS: dict[str, tuple[str, ...]] = {"qv": ("q_proj", "v_proj"), "all": ()}  # ends of layers' names; none: all


@dataclass(frozen=True, slots=True)
class SavedAdapters:
    """Folders of adapters that are alike."""

    folders: Sequence[Path]
    num_bytes: int  # of one adapter's tensors


def save_random_adapters(folder: Path, model: Path, names: Sequence[str], rank: int, number: int) -> SavedAdapters:
    """Save adapters in bfloat16, for the layers with these names; raises ConfigError where the model has none."""
    layers = TargetLayers(empty_decoder(model)).by_name
    chosen = {name: layer for name, layer in layers.items() if not names or name.endswith(tuple(names))}
    if not chosen:
        raise ConfigError(f"{model} has no layer {' or '.join(names)}")
    generator, folders, num_bytes = torch.Generator().manual_seed(1), [], 0
    config = {"peft_type": "LORA", "bias": "none", "r": rank, "lora_alpha": rank, "target_modules": [*chosen]}
    for index in range(number):
        tensors = {}
        for name, layer in chosen.items():
            a = torch.randn(rank, layer.in_features, generator=generator) * layer.in_features**-0.5
            b = torch.randn(len(layer.outputs), rank, generator=generator) * 0.02
            tensors[f"base_model.model.{name}.lora_A.weight"] = a.to(torch.bfloat16)
            tensors[f"base_model.model.{name}.lora_B.weight"] = b.to(torch.bfloat16)
        folders.append(folder / str(index))
        folders[-1].mkdir(parents=True)
        (folders[-1] / CONFIG_FILE).write_text(json.dumps(config))
        save_file(tensors, folders[-1] / WEIGHTS_FILE)
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    return SavedAdapters(folders, num_bytes)
