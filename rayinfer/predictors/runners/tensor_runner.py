"""Runner of registered predictors: named tensors to named tensors, checked against a schema."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rayinfer.errors import InvalidParameter, ModelLoadError, RequestFailed
from rayinfer.predictions import PredictorDescription
from rayinfer.predictors.registered import DATATYPES, RegisteredPredictor
from rayinfer.predictors.runner import NamedTensors, RunnerItem, RunnerResult
from rayinfer.protocols import TensorSpec


class TensorRunner:
    """A built predictor of tensors; items run one by one."""

    max_input_tokens = 0
    vocab_size = 0

    def __init__(self, registered: RegisteredPredictor, device: torch.device) -> None:
        self.inputs, self.outputs = registered.inputs, registered.outputs
        self.description = PredictorDescription(tasks=("infer",), inputs=self.inputs, outputs=self.outputs)
        self._device = device
        try:
            self._call = registered.factory()
        except Exception as error:  # of the user's code, which may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ModelLoadError(f"predictor {registered.name!r} cannot be built: {reason}") from error
        if isinstance(self._call, torch.nn.Module):
            self._call.eval().to(device)

    @torch.inference_mode()
    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """See Runner."""
        for index, item in enumerate(batch):
            place = item.name or f"item {index}"
            if item.task != "infer":
                raise InvalidParameter(f"{place}: task {item.task!r} is not one of this model's: infer", "task")
            self._check(item.tensors, place)
        return [self._infer(item.tensors) for item in batch]

    def close(self) -> None:
        """See Runner."""
        del self._call

    def _check(self, tensors: NamedTensors, place: str) -> None:
        expected = {spec.name: spec for spec in self.inputs}
        if set(tensors) != set(expected):
            raise InvalidParameter(
                f"{place}: inputs are {sorted(tensors)!r:.80}, expected {sorted(expected)}", "inputs"
            )
        for name, tensor in tensors.items():
            spec = expected[name]
            if (
                not isinstance(tensor, np.ndarray)
                or torch.empty(0, dtype=DATATYPES[spec.datatype]).numpy().dtype != tensor.dtype
            ):
                found = getattr(tensor, "dtype", type(tensor).__name__)
                raise InvalidParameter(f"{place}: input {name!r} is {found}, expected {spec.datatype}", "inputs")
            if not _fits(tensor.shape, spec):
                raise InvalidParameter(
                    f"{place}: input {name!r} has shape {list(tensor.shape)}, expected {list(spec.shape or ())}",
                    "inputs",
                )
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                raise InvalidParameter(f"{place}: input {name!r} has numbers that are not finite", "inputs")

    def _infer(self, tensors: NamedTensors) -> dict[str, Any]:
        result = self._call(
            **{name: torch.from_numpy(array.copy()).to(self._device) for name, array in tensors.items()}
        )
        named = self._named(result)
        arrays: dict[str, Any] = {}
        for spec in self.outputs:
            tensor = torch.as_tensor(named[spec.name]).to("cpu", DATATYPES[spec.datatype])
            if not _fits(tuple(tensor.shape), spec):
                raise RequestFailed(
                    f"output {spec.name!r} has shape {list(tensor.shape)}, expected {list(spec.shape or ())}"
                )
            arrays[spec.name] = tensor.numpy()
        return arrays

    def _named(self, result: Any) -> Mapping[str, Any]:
        names = [spec.name for spec in self.outputs]
        if isinstance(result, Mapping):
            if lacking := [name for name in names if name not in result]:
                raise RequestFailed(f"the predictor has returned no {', '.join(lacking)}")
            return result
        values = list(result) if isinstance(result, tuple | list) else [result]
        if len(values) != len(names):
            raise RequestFailed(f"the predictor has returned {len(values)} tensors, expected {len(names)}")
        return dict(zip(names, values, strict=True))


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    if spec.shape is None:
        return True
    return len(shape) == len(spec.shape) and all(a in (-1, b) for a, b in zip(spec.shape, shape, strict=True))
