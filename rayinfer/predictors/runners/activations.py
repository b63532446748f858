"""Activations of classifiers and rerankers, as transformers' pipelines and sentence-transformers choose them."""

from collections.abc import Mapping
from types import MappingProxyType

from rayinfer.errors import ModelLoadError
from rayinfer.models.config_fields import RawConfig
from rayinfer.predictions import Activation

_NAMED: Mapping[str, Activation] = MappingProxyType({"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"})
_BY_PROBLEM: Mapping[str, Activation] = MappingProxyType(
    {"regression": "none", "multi_label_classification": "sigmoid", "single_label_classification": "softmax"}
)


def classifier_activation(raw: RawConfig) -> Activation:
    """Return the activation of a classifier of several labels, by the kind of problem that it was trained for."""
    return _BY_PROBLEM.get(str(raw.get("problem_type")), "softmax")


def relevance_activation(raw: RawConfig) -> Activation:
    """Return the activation of a model of one label: the one that the checkpoint names, else a sigmoid."""
    settings = raw.get("sentence_transformers")
    named = settings.get("activation_fn") if isinstance(settings, Mapping) else None
    named = named or raw.get("sbert_ce_default_activation_function")
    if named is None:
        return "none" if raw.get("problem_type") == "regression" else "sigmoid"
    kind = str(named).rpartition(".")[2]
    if kind not in _NAMED:
        raise ModelLoadError(f"activation_fn {named!r} is not supported, only {', '.join(_NAMED)}")
    return _NAMED[kind]
