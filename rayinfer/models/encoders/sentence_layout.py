"""The folder layout of sentence-transformers: what follows a model's hidden states, and settings of texts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.errors import ModelLoadError
from rayinfer.models.config_fields import RawConfig, count, flag, read_json
from rayinfer.models.encoders.pooling import Pooling
from rayinfer.models.predictor_kind import SENTENCE_MODULES
from rayinfer.prediction_outputs import Similarity

POOLINGS: Mapping[str, Pooling] = MappingProxyType(
    {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last", "weightedmean": "weightedmean"}
)
_OLD_POOLINGS: Mapping[str, str] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
)
DENSE_ACTIVATIONS = MappingProxyType(
    {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
)
_SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseLayer:
    """A linear layer behind the pooling."""

    folder: Path
    in_features: int
    out_features: int
    has_bias: bool
    activation: str  # a value of DENSE_ACTIVATIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class SentenceLayout:
    """From hidden states to an embedding; by default their mean, as sentence-transformers has it."""

    pooling: Pooling = "mean"
    dense: tuple[DenseLayer, ...] = ()
    normalizes: bool = False
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""
    similarity: Similarity = "cosine"


def read_sentence_layout(folder: Path) -> SentenceLayout:
    """Read modules.json and the files that it names, if it is there; raises ModelLoadError that names a file."""
    file = folder / SENTENCE_MODULES
    if not file.is_file():
        return SentenceLayout(max_length=_max_length(folder))
    try:
        modules = [_module(folder, module, index) for index, module in enumerate(_listed(file))]
        settings = _optional(folder / "config_sentence_transformers.json")
        return _assembled(modules, folder, settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field: {error}") from None


def _assembled(modules: list["_Module"], folder: Path, settings: RawConfig) -> SentenceLayout:
    kinds = [module.kind for module in modules]
    num_dense = kinds.count("Dense")
    expected = ["Transformer", "Pooling", *["Dense"] * num_dense]
    normalizes = kinds == [*expected, "Normalize"]
    if kinds != expected and not normalizes:
        raise ModelLoadError(f"{folder / SENTENCE_MODULES}: modules {', '.join(kinds)} are not supported in this order")
    default = settings.get("default_prompt_name") or ""
    prompts = _prompts(settings)
    if default and default not in prompts:
        raise ValueError(f"default_prompt_name {default!r} is none of the prompts")
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise ValueError(f"similarity_fn_name must be one of {', '.join(_SIMILARITIES)}, got {similarity!r}")
    return SentenceLayout(
        pooling=_read_pooling(modules[1].folder),
        dense=tuple(_read_dense(module.folder) for module in modules if module.kind == "Dense"),
        normalizes=normalizes,
        max_length=_max_length(folder),
        prompts=prompts,
        default_prompt_name=default,
        similarity=similarity,
    )


@dataclass(frozen=True, slots=True)
class _Module:
    kind: str  # the last part of its class's name
    folder: Path


def _listed(file: Path) -> list[Any]:
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelLoadError(f"{file}: not readable as JSON: {error}") from None
    if not isinstance(modules, list) or not modules:
        raise ValueError("must be a list of modules")
    return modules


def _module(folder: Path, module: Any, index: int) -> _Module:
    kind, path = str(module["type"]).rpartition(".")[2], str(module["path"])
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError(f"path {path!r} lies outside the folder")
    if index == 0 and path:
        raise ModelLoadError(
            f"{folder / SENTENCE_MODULES}: a model in the folder {path!r} is not supported, only beside it"
        )
    return _Module(kind, folder / path)


def _read_pooling(folder: Path) -> Pooling:
    raw = read_json(folder / "config.json")
    modes = raw.get("pooling_mode", [name for field, name in _OLD_POOLINGS.items() if raw.get(field)])
    names = modes if isinstance(modes, list) else [modes]
    if len(names) != 1 or names[0] not in POOLINGS:
        found = ", ".join(map(str, names)) or "none"
        raise ModelLoadError(
            f"{folder / 'config.json'}: pooling {found} is not supported, only one of {', '.join(POOLINGS)}"
        )
    if not flag(raw, "include_prompt", default=True):
        raise ModelLoadError(f"{folder / 'config.json'}: include_prompt false is not supported")
    return POOLINGS[names[0]]


def _read_dense(folder: Path) -> DenseLayer:
    raw = read_json(folder / "config.json")
    name = str(raw.get("activation_function") or "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    is_on_text = raw.get("module_input_name", "sentence_embedding") == "sentence_embedding"
    if name not in DENSE_ACTIVATIONS or raw.get("use_residual") or not is_on_text:
        raise ModelLoadError(
            f"{folder / 'config.json'}: a dense layer with activation_function {name}, use_residual"
            f" {bool(raw.get('use_residual'))} is not supported; known: {', '.join(DENSE_ACTIVATIONS)}, of texts"
        )
    return DenseLayer(
        folder=folder,
        in_features=count(raw, "in_features"),
        out_features=count(raw, "out_features"),
        has_bias=flag(raw, "bias", default=True),
        activation=DENSE_ACTIVATIONS[name],
    )


def _max_length(folder: Path) -> int | None:
    """Return the shorter of what the two tokenizers' settings allow; None where neither says anything."""
    sentences, tokenizer = _optional(folder / "sentence_bert_config.json"), _optional(folder / "tokenizer_config.json")
    if sentences.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        raise ModelLoadError(f"{folder / 'sentence_bert_config.json'}: do_lower_case is the tokenizer's work")
    lengths = (sentences.get("max_seq_length"), tokenizer.get("model_max_length"))
    return min((int(length) for length in lengths if isinstance(length, int | float) and length >= 1), default=None)


def _prompts(settings: RawConfig) -> dict[str, str]:
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, Mapping) or not all(isinstance(text, str) for text in prompts.values()):
        raise ValueError(f"prompts must be texts by name, got {prompts!r:.80}")
    return dict(prompts)


def _optional(file: Path) -> RawConfig:
    return read_json(file) if file.is_file() else {}
