"""Settings of a LoRA adapter: `adapter_config.json`, as PEFT writes it (no torch here)."""

import json
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.adapters.module_patterns import PatternMatcher, check_pattern, suffix_pattern
from rayinfer.errors import AdapterRefused, shown
from rayinfer.kv_cache.adapter_id import CONFIG_FILE

# What changes more of a model than low-rank terms of its linear layers, with what it is called.
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "lora_bias": "biases of low-rank layers",
    "modules_to_save": "whole trained modules",
    "trainable_token_indices": "trained token embeddings",
    "target_parameters": "low-rank terms of parameters that are no linear layers",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "corda_config": "CorDA",
    "loftq_config": "LoftQ",
    "eva_config": "EVA",
}
_MAX_SCALE = 3.4028234663852886e38  # of float32, in which terms are computed
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # such initialisations leave another base model behind


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """Rank and scale of each target layer; raises AdapterRefused for what is not computed here.

    Layers have the names that PEFT had for them, as in the tensors' names: patterns were written for these.
    """

    file: Path
    raw: dict[str, Any]
    rank: int
    alpha: float
    _matcher: PatternMatcher = field(default_factory=PatternMatcher, repr=False, compare=False)

    def rank_of(self, layer: str) -> int:
        """Return the rank of a layer, which `rank_pattern` may change."""
        return int(self._by_pattern("rank_pattern", layer, self.rank))

    def scale_of(self, layer: str) -> float:
        """Return alpha / rank, or alpha / sqrt(rank) with rsLoRA (Kalajdzievski 2023)."""
        alpha, rank = float(self._by_pattern("alpha_pattern", layer, self.alpha)), self.rank_of(layer)
        scale = alpha / math.sqrt(rank) if self.raw.get("use_rslora") else alpha / rank
        if abs(scale) > _MAX_SCALE:
            raise AdapterRefused(
                f"{self.file}: lora_alpha or alpha_pattern scales {layer} by {scale:g}, beyond float32"
            )
        return scale

    def is_target(self, layer: str) -> bool:
        """Return whether `target_modules` names the layer, and no other setting leaves it out."""
        if self._names("exclude_modules", layer):
            return False
        return self._names("target_modules", layer) and self._is_layer_transformed(layer)

    def _is_layer_transformed(self, layer: str) -> bool:
        wanted = self.raw.get("layers_to_transform")
        if wanted is None or wanted == []:
            return True
        indices = wanted if isinstance(wanted, list) else [wanted]
        found = re.search(r"\.(\d+)\.", layer)
        return found is not None and int(found[1]) in indices

    def _by_pattern(self, name: str, layer: str, default: float) -> float:
        for pattern, value in (self.raw.get(name) or {}).items():
            if self._matcher.matches(suffix_pattern(pattern), layer):
                return float(value)
        return default

    def _names(self, name: str, layer: str) -> bool:
        names = self.raw.get(name)
        if not names:
            return False
        if names == "all-linear":
            return True
        if isinstance(names, str):
            return self._matcher.matches(names, layer)
        return any(layer == each or layer.endswith(f".{each}") for each in names)


def read_lora_config(text: bytes, folder: Path) -> LoraConfig:
    """Read the content of a folder's `adapter_config.json`; raises AdapterRefused."""
    file = folder / CONFIG_FILE
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(f"{file} is no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise AdapterRefused(f"{file} holds no JSON object")
    if (kind := raw.get("peft_type")) != "LORA":
        raise AdapterRefused(f"{file}: peft_type {shown(kind)} is not supported, only 'LORA'")
    if names := [name for field, name in _UNSUPPORTED.items() if raw.get(field)]:
        raise AdapterRefused(f"{file}: {', '.join(names)} cannot be computed here: merge the adapter with its model")
    if (bias := raw.get("bias", "none")) != "none":
        raise AdapterRefused(f"{file}: bias {shown(bias)} is not supported, only 'none': merge the adapter")
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterRefused(
            f"{file}: init_lora_weights {shown(start)} belongs to a changed base model: save it by PEFT's"
            " path_initial_model_for_weight_conversion"
        )
    rank: Any = raw.get("r")
    alpha: Any = raw.get("lora_alpha")
    if not _is_number(rank) or rank != int(rank) or rank < 1:
        raise AdapterRefused(f"{file}: r must be a whole number of at least 1, got {shown(rank)}")
    if not _is_number(alpha):
        raise AdapterRefused(f"{file}: lora_alpha must be a number, got {shown(alpha)}")
    if not isinstance(root := raw.get("use_rslora"), bool | None):
        raise AdapterRefused(f"{file}: use_rslora must be true or false, got {shown(root)}")
    _check_patterns(raw, file)
    return LoraConfig(file=file, raw=raw, rank=int(rank), alpha=float(alpha))


def _check_patterns(raw: dict[str, Any], file: Path) -> None:
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = raw.get(name) or {}
        if not isinstance(patterns, dict):
            raise AdapterRefused(f"{file}: {name} must be an object, got {shown(patterns)}")
        for pattern, value in patterns.items():
            if not _is_number(value) or (name == "rank_pattern" and (value < 1 or value != int(value))):
                raise AdapterRefused(f"{file}: {name} of {shown(pattern)} must be a number, got {shown(value)}")
            check_pattern(suffix_pattern(pattern), f"{file}: {name}")
    for name in ("target_modules", "exclude_modules"):
        names = raw.get(name)
        if isinstance(names, str):
            check_pattern(names, f"{file}: {name}")
        elif names is not None and not (isinstance(names, list) and all(isinstance(each, str) for each in names)):
            raise AdapterRefused(f"{file}: {name} must be a list of names or a pattern, got {shown(names)}")
    wanted = raw.get("layers_to_transform")
    indices = wanted if isinstance(wanted, list) else [wanted]
    if wanted is not None and not all(isinstance(index, int) for index in indices):
        raise AdapterRefused(f"{file}: layers_to_transform must be layers' numbers, got {shown(wanted)}")


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # integers may be beyond every float
