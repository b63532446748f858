"""Convolutions of image classifiers on a CPU, with their batch norm and activation in one oneDNN operation."""

import logging
from typing import Any

import torch
from torch import nn

logger = logging.getLogger(__name__)

# Of transformers: modules of a convolution, a normalization and, but for the last, an activation.
LAYERS = frozenset(("MobileNetV2ConvLayer", "ResNetConvLayer", "ResNetShortCut"))
MOST_DIFFERENCE = 1e-4  # of logits, over the largest; beyond it nothing is fused


class FusedConvolution(nn.Module):
    """A convolution whose batch norm is folded into its weights, with its activation behind it; channels lie last."""

    def __init__(self, layer: nn.Module, inputs: torch.Tensor, *, same_padding: bool) -> None:
        """`same_padding`: TensorFlow's, which pads an image's end more than its start."""
        super().__init__()
        convolution: Any = layer.convolution
        weight, bias = _folded(convolution, layer.normalization)
        before, after = _padding(convolution, inputs) if same_padding else (convolution.padding, convolution.padding)
        # The operation pads both sides alike: weights of zeros in front make up for what is too much.
        more = [end - start for start, end in zip(before, after, strict=True)]
        weight = nn.functional.pad(weight, (more[1], 0, more[0], 0))
        self._bias = bias
        shape = (list(after), list(convolution.stride), list(convolution.dilation), convolution.groups)
        self._shape = shape
        self._weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *shape, list(inputs.shape))
        self._fused, self._scalars, self._activation = _fused_activation(getattr(layer, "activation", None))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [1, channels, height, width] -> [1, new channels, new height, new width]."""
        hidden = hidden.contiguous(memory_format=torch.channels_last)
        hidden = torch.ops.mkldnn._convolution_pointwise(
            hidden, self._weight, self._bias, *self._shape, self._fused, self._scalars, ""
        )
        return hidden if self._activation is None else self._activation(hidden)


def fuse_convolutions(model: nn.Module, input_size: tuple[int, int]) -> nn.Module:
    """Replace a classifier's convolutions for images of one size; returns it as it is where that would not be exact.

    It is for float32 on CPUs whose torch has oneDNN; numbers differ by rounding alone.
    """
    if model.dtype != torch.float32 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return model
    draw = torch.Generator().manual_seed(0)
    image = torch.randn(1, 3, *input_size, generator=draw)
    inputs: dict[nn.Module, torch.Tensor] = {}
    layers = {name: each for name, each in model.named_modules() if type(each).__name__ in LAYERS}
    hooks = [
        each.register_forward_pre_hook(lambda module, given: inputs.__setitem__(module, given[0]))
        for each in layers.values()
    ]
    with torch.inference_mode():
        expected = model(pixel_values=image).logits
        for hook in hooks:
            hook.remove()
        fused = {
            name: FusedConvolution(layer, inputs[layer], same_padding=_has_same_padding(layer)).eval()
            for name, layer in layers.items()
            if _is_foldable(layer)
        }
        _replace(model, fused)
        found = model(pixel_values=image).logits
        if (found - expected).abs().max() > MOST_DIFFERENCE * max(1.0, expected.abs().max().item()):
            logger.warning("convolutions are not fused: the numbers would differ")
            _replace(model, {name: layers[name] for name in fused})
    return model


def _replace(model: nn.Module, modules: "dict[str, Any]") -> None:
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)


def _has_same_padding(layer: Any) -> bool:
    return type(layer).__name__ == "MobileNetV2ConvLayer" and bool(layer.config.tf_padding)


def _is_foldable(layer: Any) -> bool:
    convolution, normalization = layer.convolution, layer.normalization
    is_plain = isinstance(convolution, nn.Conv2d) and convolution.padding_mode == "zeros"
    has_numbers = not isinstance(convolution.padding, str)
    return is_plain and has_numbers and (normalization is None or isinstance(normalization, nn.BatchNorm2d))


def _folded(convolution: nn.Conv2d, normalization: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight and bias of both in float32."""
    weight = convolution.weight.double()
    bias = weight.new_zeros(len(weight)) if convolution.bias is None else convolution.bias.double()
    if normalization is not None:
        scale = normalization.weight.double() / (normalization.running_var.double() + normalization.eps).sqrt()
        weight = weight * scale[:, None, None, None]
        bias = (bias - normalization.running_mean.double()) * scale + normalization.bias.double()
    return weight.float(), bias.float()


def _padding(convolution: nn.Conv2d, inputs: torch.Tensor) -> tuple[list[int], list[int]]:
    """Return TensorFlow's padding of height and width, at their starts and at their ends."""
    before, after = [], []
    for size, kernel, stride, dilation in zip(
        inputs.shape[2:], convolution.kernel_size, convolution.stride, convolution.dilation, strict=True
    ):
        total = max(kernel - (size % stride or stride), 0)
        before.append(total // 2 * dilation)
        after.append((total - total // 2) * dilation)
    return before, after


def _fused_activation(activation: Any) -> tuple[str, list[float], Any]:
    """Return an activation as oneDNN names it with its numbers, or the module that comes behind."""
    if activation is None or isinstance(activation, nn.Identity):
        return "none", [], None
    if isinstance(activation, nn.Hardtanh):
        return "hardtanh", [activation.min_val, activation.max_val], None
    if type(activation) is nn.ReLU:
        return "relu", [], None
    return "none", [], activation
