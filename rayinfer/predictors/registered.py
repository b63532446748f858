"""Predictors that a program or another package registers: torch modules and functions of named tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rayinfer.entry_points import MODELS, call_entry_point, entry_point_names
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.models.architectures.registry import ARCHITECTURES
from rayinfer.models.checkpoints.model_folder import registered_name
from rayinfer.protocols import TensorSpec

DATATYPES = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32,
    "INT64": torch.int64, "FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RegisteredPredictor:
    """A predictor of tensors, and how it is built."""

    name: str
    factory: Callable[[], Any]  # builds a torch.nn.Module or a function; it is called with tensors by name
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


# The process has one, as Python has one table of modules: what a program registers, its predictors find.
_registered: dict[str, RegisteredPredictor] = {}


def register_predictor(
    name: str, factory: Callable[[], Any], *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> RegisteredPredictor:
    """Make a predictor known by name in this process; `factory` returns a module or function, called with its inputs.

    It returns a tensor, or several in the order of `outputs`, or a dictionary of them. The first dimension is not
    taken for a batch. Raises ConfigError for a name in use and for a schema that cannot be checked.
    """
    registered = RegisteredPredictor(name, factory, tuple(inputs), tuple(outputs))
    if not name or name in _registered or name in ARCHITECTURES:
        raise ConfigError(f"a predictor cannot be registered as {name!r}: the name is empty or in use")
    if not callable(factory):
        raise ConfigError(f"factory of predictor {name!r} must be callable, got {factory!r:.80}")
    for kind, specs in (("input", registered.inputs), ("output", registered.outputs)):
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"predictor {name!r} needs {kind}s with names of their own, got {names!r:.80}")
        for spec in specs:
            if spec.datatype not in DATATYPES:
                raise ConfigError(f"{kind} {spec.name!r} of predictor {name!r} has datatype {spec.datatype!r},"
                                  f" expected one of {', '.join(DATATYPES)}")  # fmt: skip
    _registered[name] = registered
    return registered


def unregister_predictor(name: str) -> None:
    """Forget a predictor; one that is not there is ignored."""
    _registered.pop(name, None)


def registered_predictor_of(name: str, folder: Path | None) -> RegisteredPredictor | None:
    """Return the registered predictor that a model's name means, or the folder that `resolve_model` gave it."""
    known = None if folder is None else registered_name(folder)
    return find_registered_predictor(known or name)


def find_registered_predictor(name: str) -> RegisteredPredictor | None:
    """Look a name up in this process, then among the entry points of other packages; None: it is not registered.

    An entry point of the group rayinfer.models is called with the name, and calls `register_predictor`.
    """
    if name in _registered or name in ARCHITECTURES or name not in entry_point_names(MODELS):
        return _registered.get(name)
    call_entry_point(MODELS, name, name)
    if name not in _registered:
        raise ModelLoadError(f"the entry point {name!r} has registered no predictor of this name")
    return _registered[name]
