"""Graphs as files: written by the exporters of torch, and loaded as functions of tensors."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.predictors.optimized.forms import Form
from rayinfer.predictors.optimized.graph_modules import GraphModule

Graph = Callable[..., Sequence[torch.Tensor]]  # of tensors in the order of the graph's inputs
OPSET = 20
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def check_packages(form: Form, *, to_write: bool) -> None:
    """Raise ConfigError where a package that a form needs is not installed."""
    if not form.package:
        return
    for name in ONNX_PACKAGES if to_write else (form.package,):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"form {form.name} needs the package {name}: pip install 'rayinfer[onnx]'")


def write_graph(form: Form, graph: GraphModule, file: Path) -> None:
    """Export a graph; raises ConfigError with the exporter's reason where the model cannot be exported."""
    writers = {"onnx": _write_onnx, "torch-export": _write_program, "aoti": _write_aoti, "torchscript": _write_script}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of exporters: they concern their authors
            writers[form.name](graph, file)
    except Exception as error:  # exporters raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        raise ConfigError(f"the model cannot be exported to {form.name}: {reason}") from error


def load_graph(form: Form, file: Path, device: torch.device) -> Graph:
    """Load an exported graph; raises ModelLoadError that names the file."""
    loaders = {"onnx": load_onnx, "int8-static": load_onnx, "torch-export": _load_program, "aoti": _load_aoti}
    try:
        return loaders.get(form.name, load_script)(file, device)
    except (ModelLoadError, ConfigError):
        raise
    except Exception as error:  # runtimes raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelLoadError(f"{file} cannot be loaded: {reason}") from error


def export(graph: GraphModule) -> torch.export.ExportedProgram:
    """Trace a graph with its dimensions of any size."""
    return torch.export.export(graph.module, graph.example, dynamic_shapes=_by_argument(graph))


def _by_argument(graph: GraphModule) -> Any:
    # A module of any number of arguments has one parameter for all of them.
    is_variadic = type(graph.module).__name__ == "_Named"
    return (graph.dynamic_shapes,) if is_variadic else graph.dynamic_shapes


def _write_program(graph: GraphModule, file: Path) -> None:
    torch.export.save(export(graph), file)


def _write_aoti(graph: GraphModule, file: Path) -> None:
    inductor: Any = importlib.import_module("torch._inductor")
    inductor.aoti_compile_and_package(export(graph), package_path=str(file))


def _write_script(graph: GraphModule, file: Path) -> None:
    traced: Any = torch.jit.trace(graph.module, graph.example, check_trace=False)  # type: ignore[no-untyped-call]
    traced.save(str(file))


def _write_onnx(graph: GraphModule, file: Path) -> None:
    torch.onnx.export(
        export(graph),
        (),
        file,
        dynamo=True,
        opset_version=OPSET,
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        external_data=False,
        verbose=False,
    )


def load_onnx(file: Path, device: torch.device) -> Graph:
    """Load an ONNX file into ONNX Runtime."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # the caller's is one of them
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would take others' cores
    options.log_severity_level = 3
    has_cuda = device.type == "cuda" and "CUDAExecutionProvider" in runtime.get_available_providers()
    providers = ["CUDAExecutionProvider"] * has_cuda + ["CPUExecutionProvider"]
    session = runtime.InferenceSession(str(file), options, providers=providers)
    names = [each.name for each in session.get_inputs()]

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        arrays = (tensor.cpu().numpy() for tensor in tensors)
        return [torch.from_numpy(array) for array in session.run(None, dict(zip(names, arrays, strict=True)))]

    return run


def _load_program(file: Path, device: torch.device) -> Graph:
    module = torch.export.load(file).module()
    return module.to(device)


def _load_aoti(file: Path, device: torch.device) -> Graph:
    inductor: Any = importlib.import_module("torch._inductor")
    return inductor.aoti_load_package(str(file))  # type: ignore[no-any-return]


def load_script(file: Path, device: torch.device) -> Graph:
    """Load a TorchScript archive, which may run code from then on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated, which the form says
        module: Any = torch.jit.load(str(file), map_location=device)  # type: ignore[no-untyped-call]
    return module.eval()  # type: ignore[no-any-return]
