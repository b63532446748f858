"""Static int8 by ONNX Runtime: scales of activations are fixed by calibration data."""

import contextlib
import importlib
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PRODUCTS = ("MatMul", "Gemm", "Conv")
CLIPS = ("Clip", "Relu")
STEPS = 255  # between the numbers of eight bits
LEAST_SIGNAL_DB = 29.0  # of a product's inputs over their rounding error with one scale
TINY = 1e-30

Feed = dict[str, npt.NDArray[Any]]  # a graph's inputs by name


def quantize_onnx(source: Path, target: Path, feeds: Sequence[Feed], *, reduce_range: bool) -> dict[str, int]:
    """Write an ONNX file whose products with weights have eight bits; returns how many have them and how many not.

    Products whose inputs have rare large numbers keep their floats: one scale for all would round the rest away.
    """
    onnx, quantization = importlib.import_module("onnx"), importlib.import_module("onnxruntime.quantization")
    shapes = importlib.import_module("onnxruntime.quantization.shape_inference")
    prepared = target.with_suffix(".prepared.onnx")
    with _quiet():
        shapes.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        inputs = _inputs_of_products(onnx.load(str(prepared)))
        signals = _signals(onnx.load(str(prepared)), sorted(set(inputs.values())), feeds)
        chosen = [node for node, name in inputs.items() if signals[name] >= LEAST_SIGNAL_DB]
        quantization.quantize_static(
            str(prepared),
            str(target),
            _reader(quantization.CalibrationDataReader, feeds),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_quantize=[*chosen, *_clips_behind(onnx.load(str(prepared)), chosen)],
            extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]},
        )
    prepared.unlink()
    return {"quantized_products": len(chosen), "float_products": len(inputs) - len(chosen)}


def _inputs_of_products(model: Any) -> dict[str, str]:
    """Name the nodes that multiply by weights, and their other inputs."""
    weights = {each.name for each in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        others = [name for name in node.input[:2] if name not in weights]
        if node.op_type in PRODUCTS and len(others) == 1:
            found[node.name] = others[0]
    return found


def _clips_behind(model: Any, chosen: Sequence[str]) -> list[str]:
    """Name the nodes that clip chosen products' outputs: what they cut off needs no numbers of the eight bits."""
    outputs = {name for node in model.graph.node if node.name in chosen for name in node.output}
    return [node.name for node in model.graph.node if node.op_type in CLIPS and node.input[0] in outputs]


def _signals(model: Any, names: Sequence[str], feeds: Sequence[Feed]) -> dict[str, float]:
    """Measure the mean square of tensors' rows over that of their rounding error with one scale, in decibels.

    Rows count alike, so that a few large ones do not hide that the others are rounded away; an image is one row.
    """
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    of_graph = {each.name for each in model.graph.input}
    inner = [name for name in names if name not in of_graph]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in inner)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    squares: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in names}
    lowest, highest = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for feed in feeds:
        tensors = dict(zip(inner, session.run(inner, feed), strict=True)) | feed
        for name in names:
            values = tensors[name].astype(np.float64)
            rows = values.reshape(len(values), -1) if values.ndim > 3 else values.reshape(-1, values.shape[-1])
            squares[name].append(np.square(rows).mean(-1))
            lowest[name], highest[name] = min(lowest[name], values.min()), max(highest[name], values.max())
    signals = {}
    for name in names:
        error = ((highest[name] - lowest[name]) / STEPS) ** 2 / 12
        noise = error / np.maximum(np.concatenate(squares[name]), TINY)
        signals[name] = -10 * float(np.log10(max(noise.mean(), TINY)))
    return signals


def _reader(base: type, feeds: Sequence[Feed]) -> Any:
    """Make the reader of calibration data that ONNX Runtime asks for."""
    remaining: Iterator[Feed] = iter(feeds)
    return type("Reader", (base,), {"get_next": lambda self: next(remaining, None)})()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep advice of the quantizer to its callers off the terminal."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.root.setLevel(level)
