"""Runners of optimized folders, by the form that their manifests name."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.models.checkpoints.model_folder import TENSOR_SCHEMA
from rayinfer.models.config_fields import read_json
from rayinfer.models.encoders.encoder_config import read_encoder_config
from rayinfer.models.encoders.sentence_layout import read_sentence_layout
from rayinfer.predictors.optimized.forms import ChosenForm
from rayinfer.predictors.optimized.graph_files import Graph, check_packages, load_graph, load_script
from rayinfer.predictors.optimized.graph_modules import GraphModule, image_graph, text_graph
from rayinfer.predictors.optimized.machine import check_machine, check_precision
from rayinfer.predictors.optimized.manifest import Manifest, read_manifest
from rayinfer.predictors.optimized.module_digest import module_digest
from rayinfer.predictors.optimized.packed_modules import load_quantized, load_quantized_encoder
from rayinfer.predictors.registered import DATATYPES, RegisteredPredictor, find_registered_predictor
from rayinfer.predictors.runner import Runner
from rayinfer.predictors.runners.image_processing import read_image_processing
from rayinfer.predictors.runners.image_runner import (
    build_image_runner,
    computed_image_runner,
    empty_classifier,
    image_runner,
)
from rayinfer.predictors.runners.padded_text_runner import PaddedTextRunner
from rayinfer.predictors.runners.tensor_runner import TensorRunner
from rayinfer.predictors.runners.text_runner import build_text_runner, describe_encoder, longest_text
from rayinfer.protocols import TensorSpec
from rayinfer.startup_steps import startup_step
from rayinfer_kernels import ops

WEIGHTS_FILE = "model.safetensors"
SCRIPT_FILE = "model.pt"
FORMATS = {"int8-dynamic": ops.WeightFormat.INT8_DYNAMIC, "int8-weight-only": ops.WeightFormat.INT8}

logger = logging.getLogger(__name__)


def build_optimized_runner(config: EngineConfig, folder: Path, device: torch.device) -> Runner:
    """Load an optimized folder, once its files are what was verified.

    Raises ModelLoadError for another file, machine or version, and ConfigError for settings that the form decides, for
    packages that are not installed and for code from elsewhere without `trust_remote_code`.
    """
    manifest = read_manifest(folder)
    chosen = manifest.chosen
    _check_settings(config, chosen)
    check_machine(manifest, device)
    check_packages(chosen.form, to_write=False)
    if chosen.form.carries_code and not manifest.is_sealed:
        _check_trust(config, folder / chosen.form.file)
    if chosen.form.storage == "graph":
        with startup_step("loading the graph"):
            graph = load_graph(chosen.form, folder / chosen.form.file, device)
        return graph_runner(config, folder, manifest.kind, graph, device)
    return _weights_runner(config, folder, manifest, device)


def build_script_runner(config: EngineConfig, folder: Path, device: torch.device) -> Runner:
    """Load a TorchScript archive of others, whose inputs and outputs `tensors.json` has in their order."""
    read_schema(folder)
    file = folder / SCRIPT_FILE
    if not file.is_file():
        raise ModelLoadError(f"{file} is missing, though there is a {TENSOR_SCHEMA}")
    _check_trust(config, file)
    try:
        script = load_script(file, device)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"{file} is no TorchScript archive: {reason}") from error
    return graph_runner(config, folder, "tensors", script, device)


def graph_runner(config: EngineConfig, folder: Path, kind: str, graph: Graph, device: torch.device) -> Runner:
    """Put the runner of a kind of model around its graph."""
    if kind == "encoder":
        shape, layout = read_encoder_config(folder), read_sentence_layout(folder)
        pad_token_id = shape.raw.get("pad_token_id")
        return PaddedTextRunner(
            graph,
            describe_encoder(shape, layout),
            max_input_tokens=longest_text(config, shape, layout),
            vocab_size=shape.vocab_size,
            pad_token_id=pad_token_id if isinstance(pad_token_id, int) else 0,
            takes_types=shape.has_pair_types,
            device=device,
        )
    if kind == "image":
        return computed_image_runner(folder, lambda image: graph(image)[0], torch.float32, device)
    inputs, outputs = read_schema(folder)

    def call(**tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        result: Any = graph(*(tensors[spec.name] for spec in inputs))
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    return TensorRunner(RegisteredPredictor(config.model, lambda: call, inputs, outputs), device)


def compiled(graph: GraphModule, mode: str, device: torch.device) -> Graph:
    """Compile a graph for inputs of any size, and run it with one item and with several."""
    module = graph.module.to(device)
    with startup_step("compiling"):
        run: Callable[..., Any] = torch.compile(module, mode=_mode(mode), dynamic=True)
        with torch.inference_mode():
            run(*(tensor.to(device) for tensor in graph.example))
            if graph.ranges.get("batch"):
                run(*(tensor[:1].to(device) for tensor in graph.example))
    return run


def _mode(name: str) -> str | None:
    return None if name == "default" else name


def _weights_runner(config: EngineConfig, folder: Path, manifest: Manifest, device: torch.device) -> Runner:
    chosen, kind = manifest.chosen, manifest.kind
    if chosen.mode is not None and kind == "tensors":
        registered, module = _registered_module(manifest)
        call = torch.compile(module.to(device), mode=_mode(chosen.mode), dynamic=True)
        return TensorRunner(
            RegisteredPredictor(config.model, lambda: call, registered.inputs, registered.outputs), device
        )
    if chosen.mode is not None:
        return graph_runner(config, folder, kind, compiled(_own_graph(folder, kind), chosen.mode, device), device)
    if chosen.name in ("bf16", "fp16"):
        check_precision(chosen.name, device)
        return (build_text_runner if kind == "encoder" else build_image_runner)(config, folder, device)
    if device.type != "cpu":
        raise ModelLoadError(f"{folder}: {chosen.name} is for CPUs")
    format, file = FORMATS[chosen.name], folder / WEIGHTS_FILE
    if kind == "encoder":
        return build_text_runner(config, folder, device, partial(load_quantized_encoder, folder, format, file, device))
    if kind == "image":
        model = empty_classifier(folder)
        load_quantized(model, format, file)
        return image_runner(folder, model, torch.float32, device)
    registered, module = _registered_module(manifest)
    load_quantized(module, format, file)
    return TensorRunner(
        RegisteredPredictor(config.model, lambda: module, registered.inputs, registered.outputs), device
    )


def _own_graph(folder: Path, kind: str) -> GraphModule:
    if kind == "encoder":
        shape, layout = read_encoder_config(folder), read_sentence_layout(folder)
        return text_graph(folder, min(shape.max_length, layout.max_length or shape.max_length))
    return image_graph(folder, read_image_processing(folder).input_size)
    raise ModelLoadError(
        f"{folder}: a registered predictor is compiled where it is registered: torch.compile its module"
    )


def _registered_module(manifest: Manifest) -> tuple[RegisteredPredictor, torch.nn.Module]:
    name = str(manifest.original.get("model"))
    registered = find_registered_predictor(name)
    module = None if registered is None else registered.factory()
    if registered is None or not isinstance(module, torch.nn.Module):
        raise ModelLoadError(f"this form has the weights of the registered predictor {name!r}, which is not registered")
    if module_digest(module) != manifest.original.get("digest"):
        raise ModelLoadError(f"the registered predictor {name!r} has other weights than when it was optimized")
    return registered, module.eval()


def read_schema(folder: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Read inputs and outputs of a predictor of tensors; raises ModelLoadError."""
    file = folder / TENSOR_SCHEMA
    raw = read_json(file)
    try:
        sides = [tuple(_spec(each) for each in side) for side in (raw["inputs"], raw["outputs"])]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field: {error}") from None
    for spec in (*sides[0], *sides[1]):
        if spec.datatype not in DATATYPES:
            raise ModelLoadError(f"{file}: datatype {spec.datatype!r:.80} is not one of {', '.join(DATATYPES)}")
    if not all(sides):
        raise ModelLoadError(f"{file}: there must be inputs and outputs")
    return sides[0], sides[1]


def _spec(raw: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(name=str(raw["name"]), datatype=str(raw["datatype"]), shape=tuple(map(int, raw["shape"])))


def write_schema(folder: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Write them for `read_schema`."""
    sides = {"inputs": inputs, "outputs": outputs}
    raw = {
        side: [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape or ())} for each in specs]
        for side, specs in sides.items()
    }
    (folder / TENSOR_SCHEMA).write_text(json.dumps(raw, indent=1), encoding="utf-8")


def _check_settings(config: EngineConfig, chosen: ChosenForm) -> None:
    if config.quantization is not None or config.dtype != "auto":
        raise ConfigError(f"dtype and quantization must not be set: the model has the form {chosen.name}")
    is_padded = chosen.form.storage == "graph" or chosen.mode is not None
    if config.deterministic and is_padded:
        raise ConfigError(f"deterministic must not be true with the form {chosen.name}: it pads texts to their batch")


def _check_trust(config: EngineConfig, file: Path) -> None:
    if not config.trust_remote_code:
        raise ConfigError(
            f"{file} was not written by `rayinfer optimize` of this user on this machine, and can run any code when it"
            " is loaded: set trust_remote_code (--trust-remote-code) if you trust who made it"
        )
    logger.warning("%s was made elsewhere and can run any code; it is loaded because of trust_remote_code", file)
