"""Choice between our kernels and torch's for an encoder, by timing both on its shapes, once per machine.

Which products are faster depends on the processor. Torch's choose their order of sums by the batch, so a text's bits
may depend on what else is computed. Where all layers can be one operation of ours, it is timed beside the layers as
the fastest products make them.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import rayinfer_kernels
from rayinfer.layers.feed_forward import TORCH_ACTIVATIONS, FeedForward, GatedFeedForward
from rayinfer.layers.linear import Linear
from rayinfer.layers.norms import LayerNorm
from rayinfer.models.encoders.encoder import Encoder
from rayinfer.models.encoders.encoder_stack import run_layers, stack_layers
from rayinfer.models.kernel_measurements import KernelMeasurements
from rayinfer_kernels import ops

NUM_ROWS = (32, 512)  # of a single text, and of a batch
NUM_RUNS = 5
STACK_LENGTHS = ((16,), tuple(range(8, 104, 8)))  # of a single text, and of a batch of 624 tokens
STACK_LAYERS = 2  # that are timed; all have one shape
STACK_RUNS = 9


def use_own_kernels(model: torch.nn.Module) -> None:
    """Pack every linear layer, so that no result depends on the batch."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.pack()
    if isinstance(model, Encoder) and (stack := stack_layers(model)) is not None:
        model.use_stack(stack)


def use_fastest_kernels(encoder: Encoder, dtype: torch.dtype, folder: Path) -> None:
    """Choose for each shape of a model on the CPU by timing, or by what an earlier process has recorded in `folder`."""
    if not rayinfer_kernels.has_kernels(torch.device("cpu"), dtype):
        return
    measured = KernelMeasurements(folder, dtype)
    _choose_products(encoder, dtype, measured)
    if (candidate := stack_layers(encoder, STACK_LAYERS)) is not None:
        config, first = (
            encoder.config,
            next(module for module in encoder.layers.modules() if isinstance(module, Linear)),
        )
        number_format = "" if first.packed is None else f" {first.packed.format.name}"
        shape = f"{config.hidden_size}x{config.intermediate_size} {config.num_heads} heads{number_format}"
        if measured.find(f"layers {shape}", lambda: _time_stack(encoder, candidate, dtype)) < 1:
            for module in encoder.modules():
                if isinstance(module, LayerNorm):
                    module.uses_torch = False
            use_own_kernels(encoder)
    measured.save()


def _choose_products(encoder: Encoder, dtype: torch.dtype, measured: KernelMeasurements) -> None:
    for module in encoder.modules():
        if isinstance(module, Linear) and module.packed is None:
            shape = "x".join(map(str, module.weight.shape))
            if measured.find(f"linear {shape}", lambda: _time_linear(module)) < 1:  # noqa: B023
                module.pack()
        elif isinstance(module, LayerNorm):
            module.uses_torch = measured.find(f"layer_norm {len(module.weight)}", lambda: _time_norm(module)) >= 1  # noqa: B023
        elif isinstance(module, FeedForward | GatedFeedForward) and module.activation in TORCH_ACTIVATIONS:
            own, other = module.activation, TORCH_ACTIVATIONS[module.activation]
            width = (
                module.down_proj.weight.shape[1]
                if module.down_proj.packed is None
                else module.down_proj.packed.in_features
            )
            if measured.find(f"{own.__name__} {width}", lambda: _time_on_rows(width, dtype, own, other)) >= 1:  # noqa: B023
                module.activation = other


def _time_stack(encoder: Encoder, stack: ops.EncoderStack, dtype: torch.dtype) -> float:
    """Return how much longer the first layers take as one operation than one by one: medians of alternating runs."""
    ratio = 1.0
    for lengths in STACK_LENGTHS:
        x = torch.randn(sum(lengths), encoder.config.hidden_size, dtype=dtype)
        runs = (partial(stack.run, x, lengths), partial(run_layers, encoder, STACK_LAYERS, x, lengths))
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(STACK_RUNS + 1):  # the first is a warm-up
            for run, found in zip(runs, seconds, strict=True):
                started = time.perf_counter()
                run()
                found.append(time.perf_counter() - started)
        own, other = (statistics.median(found[1:]) for found in seconds)
        ratio *= own / max(other, 1e-9)
    return float(ratio ** (1 / len(STACK_LENGTHS)))


def _time_linear(layer: Linear) -> float:
    weight = layer.weight
    packed = ops.pack_weight(weight.clone(), layer.is_gated)
    assert packed is not None, "there are compiled kernels"
    return _ratio(
        [torch.randn(rows, weight.shape[1], dtype=weight.dtype) for rows in NUM_ROWS],
        lambda x: (
            ops.gated_linear(x, packed, layer.bias, "silu") if layer.is_gated else ops.linear(x, packed, layer.bias)
        ),
        lambda x: (
            ops.gated_linear(x, weight, layer.bias, "silu") if layer.is_gated else F.linear(x, weight, layer.bias)
        ),
    )


def _time_norm(norm: LayerNorm) -> float:
    width, bias = len(norm.weight), torch.zeros_like(norm.weight)
    return _time_on_rows(
        width,
        norm.weight.dtype,
        lambda x: ops.layer_norm(x, norm.weight, bias, 1e-12),
        lambda x: F.layer_norm(x, (width,), norm.weight, bias, 1e-12),
    )


def _time_on_rows(
    width: int,
    dtype: torch.dtype,
    own: Callable[[torch.Tensor], torch.Tensor],
    other: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    return _ratio([torch.randn(rows, width, dtype=dtype) for rows in NUM_ROWS], own, other)


def _ratio(
    inputs: list[torch.Tensor], own: Callable[[torch.Tensor], Any], other: Callable[[torch.Tensor], Any]
) -> float:
    """Return how much longer `own` takes than `other`, on average over the inputs' sizes; the two take turns."""
    ratio = 1.0
    for x in inputs:
        times: dict[Callable[[torch.Tensor], Any], float] = {own: float("inf"), other: float("inf")}
        for _ in range(NUM_RUNS):
            for run in times:
                started = time.perf_counter()
                run(x)
                times[run] = min(times[run], time.perf_counter() - started)
        ratio *= times[own] / max(times[other], 1e-9)
    return float(ratio ** (1 / len(inputs)))
