"""Conversion of a predictor to a form: the files of its folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rayinfer.errors import ConfigError
from rayinfer.models.checkpoints.model_folder import weight_files
from rayinfer.models.config_fields import read_json
from rayinfer.models.encoders.encoder_loading import load_encoder
from rayinfer.predictors.optimized.forms import FORMS, ChosenForm
from rayinfer.predictors.optimized.graph_files import write_graph
from rayinfer.predictors.optimized.graph_modules import TEXT_INPUTS, GraphModule
from rayinfer.predictors.optimized.machine import has_vnni
from rayinfer.predictors.optimized.optimized_runner import FORMATS, WEIGHTS_FILE, graph_runner, write_schema
from rayinfer.predictors.optimized.original import Original
from rayinfer.predictors.optimized.packed_modules import save_quantized
from rayinfer.predictors.optimized.static_int8 import Feed, quantize_onnx
from rayinfer.predictors.runner import RunnerItem
from rayinfer.predictors.runners.image_runner import ImageRunner, load_classifier
from rayinfer.predictors.runners.padded_text_runner import PaddedTextRunner

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def convert(original: Original, chosen: ChosenForm, items: Sequence[RunnerItem], out: Path) -> dict[str, Any]:
    """Write everything but the manifest into a folder; returns the options of the conversion.

    Raises ConfigError for a form that this model does not have.
    """
    form = chosen.form
    if original.device.type != "cpu" and chosen.name in ("int8-static", "aoti", "onnx", "torchscript", *FORMATS):
        raise ConfigError(f"form {chosen.name} is made and verified on CPUs only: set CUDA_VISIBLE_DEVICES to nothing")
    original.copy_settings(out, with_weights=chosen.mode is not None)
    if original.registered is not None:
        write_schema(out, original.registered.inputs, original.registered.outputs)
        original.module()  # which refuses functions
        if chosen.name in TORCH_DTYPES:
            raise ConfigError(f"form {chosen.name} is not for registered predictors: their own code decides it")
    if form.name == "int8-static":
        return _write_static(original, items, out / form.file)
    if form.storage == "graph":
        graph = original.graph(items)
        write_graph(form, graph, out / form.file)
        return _shapes(graph)
    if chosen.mode is not None:
        return {"backend": "inductor", "mode": chosen.mode, "dynamic": True, **_shapes(original.graph(items))}
    if (dtype := TORCH_DTYPES.get(form.name)) is not None:
        return _write_cast(original, dtype, out)
    model = _float_module(original)
    save_quantized(model, FORMATS[form.name], out / WEIGHTS_FILE)
    return {"weights": "int8, one scale for each output", "rows": "int8" if form.name == "int8-dynamic" else "float32"}


def _shapes(graph: GraphModule) -> dict[str, Any]:
    return {"inputs": list(graph.inputs), "outputs": list(graph.outputs), "dynamic_shapes": graph.ranges}


def _write_cast(original: Original, dtype: torch.dtype, out: Path) -> dict[str, Any]:
    assert original.folder is not None, "registered predictors have no such form"
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(original.folder):
        tensors |= load_file(file)
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(cast, out / WEIGHTS_FILE, metadata={"format": "pt"})
    settings = read_json(out / "config.json")
    name = str(dtype).removeprefix("torch.")
    (out / "config.json").write_text(json.dumps({**settings, "dtype": name}, indent=1), encoding="utf-8")
    return {"dtype": name}


def _float_module(original: Original) -> torch.nn.Module:
    if original.kind == "encoder":
        assert original.folder is not None, "an encoder has a folder"
        return load_encoder(original.folder, torch.float32, torch.device("cpu"))
    if original.kind == "image":
        assert original.folder is not None, "a classifier has a folder"
        return load_classifier(original.folder, torch.float32)
    return original.module()


def _write_static(original: Original, items: Sequence[RunnerItem], file: Path) -> dict[str, Any]:
    graph = original.graph(items)
    exported = file.with_suffix(".float.onnx")
    write_graph(FORMS["onnx"], graph, exported)
    reduce_range = not has_vnni()
    counts = quantize_onnx(exported, file, _feeds(original, graph, items, file.parent), reduce_range=reduce_range)
    exported.unlink()
    return {**_shapes(graph), **counts, "num_calibrated": len(items), "reduce_range": reduce_range}


def _feeds(original: Original, graph: GraphModule, items: Sequence[RunnerItem], folder: Path) -> list[Feed]:
    """Return a graph's inputs of each item."""
    if original.kind == "encoder":
        runner = graph_runner(original.config, folder, "encoder", graph.module, original.device)
        assert isinstance(runner, PaddedTextRunner)
        return [
            {name: tensor.numpy() for name, tensor in zip(TEXT_INPUTS, runner.padded([item]), strict=False)}
            for item in items
        ]
    if isinstance(original.runner, ImageRunner):
        return [{graph.inputs[0]: original.runner.tensors(item).numpy()} for item in items]
    return [{name: item.tensors[name] for name in graph.inputs} for item in items]
