"""Metadata and configuration of models and of the server, as the protocol writes them."""

from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Any

from rayinfer.prediction_specs import prediction_specs
from rayinfer.protocols import TensorSpec
from rayinfer.servers.kserve.prediction_tensors import predictor_description
from rayinfer.servers.kserve.prompt_images import IMAGE_INPUTS
from rayinfer.servers.kserve.repository import VERSION, AnyModel
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES
from rayinfer.servers.served_model import ServedModel

SERVER_NAME = "rayinfer"
ANY_DATATYPE = "ANY"  # of identity's tensors; the protocol has no word for it
EXTENSIONS = (
    *("binary_tensor_data", "classification", "generate", "model_configuration", "model_repository"),
    *("model_repository(unload_dependents)", "parameters", "schedule_policy", "statistics"),
)

TEXT_INPUT = TensorSpec(name="text_input", datatype="BYTES", shape=(-1,))
TEXT_OUTPUT = TensorSpec(name="text_output", datatype="BYTES", shape=(-1,))
# Of Triton's backends for language models: a request may leave them out.
STREAM = TensorSpec(name="stream", datatype="BOOL", shape=(1,))
SAMPLING_PARAMETERS = TensorSpec(name="sampling_parameters", datatype="BYTES", shape=(1,))
EXCLUDE_INPUT = TensorSpec(name="exclude_input_in_output", datatype="BOOL", shape=(1,))
OPTIONAL_INPUTS = (STREAM, SAMPLING_PARAMETERS, EXCLUDE_INPUT)

# What Triton reports where nothing is traced, and of its log.
TRACE_SETTINGS: dict[str, Any] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG_SETTINGS: dict[str, Any] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def server_metadata() -> dict[str, Any]:
    """Describe the server."""
    return {"name": SERVER_NAME, "version": installed_version("rayinfer"), "extensions": list(EXTENSIONS)}


def model_metadata(model: AnyModel) -> dict[str, Any]:
    """Describe a model's tensors."""
    inputs, outputs = _tensors(model)
    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": _platform(model),
        "inputs": [_tensor_metadata(spec) for spec in inputs],
        "outputs": [_tensor_metadata(spec) for spec in outputs],
    }


def model_config(model: AnyModel) -> dict[str, Any]:
    """Describe a model as Triton's configuration does; language models are decoupled, their answers may be streams."""
    is_text = _generates(model)
    inputs, outputs = _tensors(model)
    optional = {spec.name for spec in inputs} - {TEXT_INPUT.name} if is_text else set()
    batch = 0 if isinstance(model, ServedModel) else model.max_batch_size
    return {
        "name": model.name,
        "platform": _platform(model),
        "backend": SERVER_NAME,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": batch,
        "input": [_tensor_config(spec, batch) | {"optional": spec.name in optional} for spec in inputs],
        "output": [_tensor_config(spec, batch) for spec in outputs],
        "parameters": _config_parameters(model),
        "model_transaction_policy": {"decoupled": is_text},
    }


def text_inputs(model: ServedModel) -> Sequence[TensorSpec]:
    """Return the inputs of a language model; all but the first are optional."""
    reads_images = model.image_prompts is not None and model.takes_images
    return (TEXT_INPUT, *OPTIONAL_INPUTS, *(IMAGE_INPUTS if reads_images else ()))


def config_number(datatype: str) -> int:
    """Return the number of a datatype in a model's configuration; 0 for any."""
    return DATATYPES[datatype].config_number if datatype else 0


def _tensors(model: AnyModel) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
    if isinstance(model, ServedModel):
        if (description := predictor_description(model)) is not None:
            return prediction_specs(description)
        return text_inputs(model), (TEXT_OUTPUT,)
    return model.inputs, model.outputs


def _generates(model: AnyModel) -> bool:
    return isinstance(model, ServedModel) and predictor_description(model) is None


def _platform(model: AnyModel) -> str:
    return "rayinfer" if isinstance(model, ServedModel) else model.platform


def _tensor_metadata(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype or ANY_DATATYPE, "shape": _shape(spec)}


def _tensor_config(spec: TensorSpec, max_batch_size: int) -> dict[str, Any]:
    """Describe a tensor without the dimension of its batch."""
    name = DATATYPES[spec.datatype].config_name if spec.datatype else "TYPE_INVALID"
    return {"name": spec.name, "data_type": name, "dims": _shape(spec)[1 if max_batch_size else 0 :]}


def _shape(spec: TensorSpec) -> list[int]:
    return [-1] if spec.shape is None else list(spec.shape)


def _config_parameters(model: AnyModel) -> dict[str, Any]:
    if not isinstance(model, ServedModel):
        return {}
    longest = model.max_model_len
    return {} if longest is None else {"max_model_len": {"string_value": str(longest)}}
