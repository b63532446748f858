"""Ollama's descriptions of models: lists and details."""

import hashlib
from typing import Any

from rayinfer.servers.generation.timestamps import timestamp
from rayinfer.servers.ollama.requests import TAG
from rayinfer.servers.served_model import ServedModel
from rayinfer.tool_calls.detection import has_reasoning

_FOREVER = "2318-12-31T23:59:59Z"  # when a model that stays loaded is said to be unloaded


def model_entry(model: ServedModel) -> dict[str, Any]:
    """Return a model's entry of /api/tags. Sizes are unknown here, and said to be 0."""
    return {
        "name": tagged(model),
        "model": tagged(model),
        "modified_at": timestamp(model.created),
        "size": 0,
        "digest": hashlib.sha256((model.name if model.adapter is None else model.adapter.id).encode()).hexdigest(),
        "details": _details(model),
    }


def running_entry(model: ServedModel) -> dict[str, Any]:
    """Return a loaded model's entry of /api/ps."""
    entry = model_entry(model)
    del entry["modified_at"]
    return {**entry, "expires_at": _FOREVER, "size_vram": 0, "context_length": model.generator.describe().max_model_len}


def model_details(model: ServedModel) -> dict[str, Any]:
    """Return the answer of /api/show; raises NotReady while no engine has reported."""
    description = model.generator.describe()
    defaults = description.default_sampling_params
    return {
        "license": "",
        "modelfile": f"FROM {model.name}\n",
        "parameters": "\n".join(f"{name} {value}" for name, value in defaults.items()),
        "template": model.chat_template.text or "",
        "details": _details(model),
        "model_info": {
            "general.architecture": "transformer",
            "general.basename": model.name,
            "transformer.context_length": description.max_model_len,
            "transformer.vocab_size": description.vocab_size,
        },
        "capabilities": capabilities(model),
        "modified_at": timestamp(model.created),
    }


def capabilities(model: ServedModel) -> list[str]:
    """Return what clients look for before they offer tools, reasoning or images; every model may call tools."""
    thinking = ["thinking"] if has_reasoning(model.chat_template.text_for(has_tools=False)) else []
    return ["completion", "tools", *thinking, *(["vision"] if model.takes_images else [])]


def tagged(model: ServedModel) -> str:
    """Return a model's name as Ollama writes it, with a tag."""
    return model.name if ":" in model.name else model.name + TAG


def _details(model: ServedModel) -> dict[str, Any]:
    return {
        "parent_model": "" if model.adapter is None else model.adapter.base,
        "format": "safetensors",
        "family": "transformer",
        "families": ["transformer"],
        "parameter_size": "",
        "quantization_level": "",
    }
