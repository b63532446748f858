"""A loaded model as named tensors, and a model filled from them: packed matrices as they are, and all the rest."""

from collections.abc import Mapping
from typing import Any

import torch

from rayinfer.layers.matrix import Matrix
from rayinfer.optimization.tensor_file import StoredTensors
from rayinfer_kernels import ops
from rayinfer_kernels.ops import PackedWeight

_PARTS = ("panels", "scales", "sums", "table")


def stored_model(model: Any) -> StoredTensors:
    """Name all that a model has loaded; nothing is copied."""
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
    notes: dict[str, Any] = {}
    for name, matrix in _matrices(model):
        if (packed := matrix.packed) is not None:
            _store(packed, name, tensors, notes)
    return StoredTensors(tensors, notes)


def packed_matrix(stored: StoredTensors, name: str) -> ops.PackedWeight:
    """Return the packed matrix of this name."""
    return _take(stored.notes, name, dict(stored.tensors))


def fill_model(model: torch.nn.Module, stored: StoredTensors) -> None:
    """Give a model on the meta device the tensors that `stored_model` named; nothing is copied."""
    left = dict(stored.tensors)
    for name, matrix in _matrices(model):
        if name in stored.notes:
            matrix.use_packed(_take(stored.notes, name, left))
    for name, _ in list(model.named_parameters()):
        owner, _, kind = name.rpartition(".")
        setattr(model.get_submodule(owner), kind, torch.nn.Parameter(left.pop(name), requires_grad=False))
    assert not left, f"unexpected tensors {', '.join(left)}"


def structure_of(model: torch.nn.Module) -> str:
    """Describe what `stored_model` would name, for a model on the meta device."""
    return ";".join(f"{name}{tuple(parameter.shape)}" for name, parameter in model.named_parameters())


def _matrices(model: torch.nn.Module) -> list[tuple[str, Matrix]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Matrix)]


def _store(packed: PackedWeight, name: str, tensors: dict[str, torch.Tensor], notes: dict[str, Any]) -> None:
    parts = {part: getattr(packed, part) for part in _PARTS}
    tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items() if tensor is not None}
    notes[name] = {
        "format": packed.format.name,
        "in_features": packed.in_features,
        "out_features": packed.out_features,
        "is_gated": packed.is_gated,
        "has_offsets": packed.has_offsets,
        "group_size": packed.group_size,
    }


def _take(notes: Mapping[str, Any], name: str, tensors: dict[str, torch.Tensor]) -> PackedWeight:
    """Build the packed weight of this name from tensors, which it takes out."""
    note = notes[name]
    return PackedWeight(
        format=ops.WeightFormat[note["format"]],
        panels=tensors.pop(f"{name}.panels"),
        in_features=note["in_features"],
        out_features=note["out_features"],
        is_gated=note["is_gated"],
        scales=tensors.pop(f"{name}.scales", None),
        sums=tensors.pop(f"{name}.sums", None),
        has_offsets=note["has_offsets"],
        group_size=note.get("group_size", 0),  # of earlier versions
        table=tensors.pop(f"{name}.table", None),
    )
