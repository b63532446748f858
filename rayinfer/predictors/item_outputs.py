"""A runner's result of one item as it travels to the router."""

import numpy as np
import safetensors.numpy as safetensors

from rayinfer.errors import RequestFailed
from rayinfer.prediction_outputs import prediction_output
from rayinfer.predictions import PredictionOutput
from rayinfer.predictors.runner import RunnerResult


class OutputNotFinite(RequestFailed):
    """A result that is infinite or no number."""


def item_output(result: RunnerResult) -> PredictionOutput:
    """Make the output; raises OutputNotFinite."""
    if isinstance(result, dict):
        for name, values in result.items():
            _check_finite(values, name)
        return PredictionOutput(data=safetensors.save({name: np.ascontiguousarray(it) for name, it in result.items()}))
    _check_finite(result, "")
    return prediction_output(result)


def _check_finite(values: np.ndarray, name: str) -> None:
    if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
        raise OutputNotFinite(f"the model's output{f' {name!r}' if name else ''} for this input is not finite")
