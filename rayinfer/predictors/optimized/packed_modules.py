"""Modules whose weights have eight bits: linear layers and convolutions on the packed kernels."""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.layers.linear import Linear
from rayinfer.models.encoders.encoder import Encoder
from rayinfer.models.encoders.encoder_config import read_encoder_config
from rayinfer.models.encoders.encoder_loading import empty_encoder
from rayinfer_kernels import ops

NUMBERS, SCALES = ".weight_int8", ".weight_scale"  # in place of .weight


class PackedLayer(torch.nn.Module):
    """A linear layer whose weight is packed."""

    def __init__(self, layer: torch.nn.Linear | torch.nn.Conv2d, packed: ops.PackedWeight) -> None:
        super().__init__()
        self.bias = layer.bias
        self._packed = packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        y = ops.linear(x.reshape(-1, x.shape[-1]), self._packed, self.bias)
        return y.view(*x.shape[:-1], y.shape[-1])


class PackedConvolution(PackedLayer):
    """A convolution of one group as a product: each pixel of the output is a row."""

    def __init__(self, layer: torch.nn.Conv2d, packed: ops.PackedWeight) -> None:
        super().__init__(layer, packed)
        # Under the names of a convolution's, which models read to pad their images.
        self.kernel_size, self.stride = layer.kernel_size, layer.stride
        self.dilation, self.padding = layer.dilation, layer.padding
        self._is_pointwise = layer.kernel_size == layer.stride == (1, 1) and layer.padding == (0, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, channels, height, width] -> [batch, out_channels, new height, new width]."""
        if self._is_pointwise:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        columns = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)  # type: ignore[arg-type]
        rows = super().forward(columns.transpose(1, 2)).transpose(1, 2)
        return rows.reshape(len(x), -1, *self._output_size(x.shape[2:]))

    def _output_size(self, size: torch.Size) -> list[int]:
        found = []
        for index, length in enumerate(size):
            kernel = self.dilation[index] * (self.kernel_size[index] - 1) + 1
            found.append((length + 2 * int(self.padding[index]) - kernel) // self.stride[index] + 1)
        return found


def save_quantized(model: torch.nn.Module, format: ops.WeightFormat, file: Path) -> None:
    """Write a module's tensors, matrices as whole numbers with scales; raises ConfigError where it has none."""
    layers = _matrices(model)
    if not layers:
        raise ConfigError("the model has no linear layer and no convolution of one group: nothing gets eight bits")
    tensors = _own_tensors(model)
    for name, weight in layers.items():
        quantized = ops.quantize(weight.detach().flatten(1), format)
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}{NUMBERS}": quantized.q, f"{name}{SCALES}": quantized.scales}
    save_file(
        {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}, file
    )


def load_quantized(model: torch.nn.Module, format: ops.WeightFormat, file: Path) -> None:
    """Fill a module with what `save_quantized` wrote, in place; raises ModelLoadError for what does not fit."""
    tensors = load_file(file)
    layers = _matrices(model)
    try:
        for name in [each.removesuffix(NUMBERS) for each in tensors if each.endswith(NUMBERS)]:
            numbers, scales = tensors.pop(f"{name}{NUMBERS}"), tensors.pop(f"{name}{SCALES}")
            if numbers.shape != layers[name].flatten(1).shape or scales.shape != numbers.shape[:1]:
                raise ValueError(f"{name} has the shape {list(numbers.shape)}, expected {list(layers[name].shape)}")
            _replace(model, name, ops.QuantizedWeight(numbers, scales, format))
        if wrong := set(tensors) ^ set(_own_tensors(model)):
            raise ValueError(f"{sorted(wrong)[0]} is in one of the file and the model alone")
        for name, own in _own_tensors(model).items():
            _assign(model, name, tensors[name].to(own.dtype))
    except (KeyError, ValueError, RuntimeError) as error:
        raise ModelLoadError(f"{file} does not fit the model: {' '.join(str(error).split())[:200]}") from None


def load_quantized_encoder(folder: Path, format: ops.WeightFormat, file: Path, device: torch.device) -> Encoder:
    """Load an encoder of ours."""
    encoder = empty_encoder(read_encoder_config(folder), folder)
    load_quantized(encoder, format, file)
    encoder.prepare(torch.float32, device)
    return encoder.eval()


def _matrices(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Name the weights that get eight bits; of an encoder of ours only its layers'."""
    if isinstance(model, Encoder):
        found = {name: module.weight for name, module in model.named_modules() if isinstance(module, Linear)}
        return {name: weight for name, weight in found.items() if name.startswith("layers.")}
    return {
        name: module.weight
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear or (type(module) is torch.nn.Conv2d and _is_product(module))
    }


def _is_product(layer: torch.nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name; one that stands in two places has both names."""
    return dict(model.state_dict())


def _replace(model: torch.nn.Module, name: str, quantized: ops.QuantizedWeight) -> None:
    layer = model.get_submodule(name)
    if isinstance(layer, Linear):
        layer.use_packed(ops.pack_quantized(quantized, is_gated=layer.is_gated))
        return
    packed = ops.pack_quantized(quantized)
    parent, _, child = name.rpartition(".")
    assert isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)
    replaced = PackedConvolution(layer, packed) if isinstance(layer, torch.nn.Conv2d) else PackedLayer(layer, packed)
    setattr(model.get_submodule(parent), child, replaced)


def _assign(model: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    parent, _, child = name.rpartition(".")
    module = model.get_submodule(parent)
    if child in module._parameters:
        module._parameters[child] = torch.nn.Parameter(tensor, requires_grad=False)
    else:
        module._buffers[child] = tensor
