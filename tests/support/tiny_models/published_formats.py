"""Tiny checkpoints in published quantized formats, written number by number as each format defines it.

Each writer rounds a weight, packs it, and returns it as the format's definition dequantizes it: nothing here is shared
with the readers that are tested.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from support.tiny_models.tiny_checkpoints import change_config, make_tiny_llama, save_weights

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Published:
    """A weight in a format: the tensors of its layer by what follows the layer's name, and what they stand for."""

    tensors: dict[str, torch.Tensor]
    weight: torch.Tensor


Writer = Callable[[torch.Tensor], Published]


@dataclass(frozen=True)
class PublishedFormat:
    """A format as config.json names it, and its writer."""

    config: Mapping[str, Any]
    write: Writer
    is_exact: bool = True  # whether bfloat16 holds its numbers without rounding
    skipped: tuple[str, ...] = field(default=("lm_head",))


def make_published_llama(folder: Path, published: PublishedFormat, **config: Any) -> Path:
    """Save a tiny Llama in this format, and in `folder`/plain what it dequantizes to; return `folder`."""
    shape = {"hidden": 64, "intermediate_size": 160, "tie": False, "max_position_embeddings": 64} | config
    plain = make_tiny_llama(folder / "plain", **shape)
    for file in plain.iterdir():
        shutil.copy(file, folder)
    stored, meant = {}, {}
    for name, weight in load_file(plain / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        is_matrix = weight.dim() == 2 and "embed" not in name and not layer.endswith(published.skipped)
        if not is_matrix:
            stored[name] = meant[name] = weight
            continue
        written = published.write(weight)
        meant[name] = written.weight.contiguous()
        stored |= {f"{layer}.{suffix}": tensor.contiguous() for suffix, tensor in written.tensors.items()}
    save_weights(plain, meant)
    save_weights(folder, stored)
    return change_config(folder, quantization_config=dict(published.config))


def in_words(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack unsigned numbers [rows, n] into int32 [rows, n x bits / 32]; `order` names the number of each place."""
    per_word = 32 // bits
    rows, width = numbers.shape
    words = np.zeros((rows, -(-width // per_word)), np.uint64)
    for word in range(words.shape[1]):
        for place in range(per_word):
            index = word * per_word + (place if order is None else order[place])
            if index < width:
                words[:, word] |= numbers[:, index].astype(np.uint64) << np.uint64(place * bits)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())


def rounded_groups(
    weight: torch.Tensor, group_size: int, bits: int, *, is_symmetric: bool = False
) -> tuple[np.ndarray, torch.Tensor, np.ndarray]:
    """Return codes [out, in] without sign, scales [out, groups] in float16, and zeros [out, groups]."""
    top = 2**bits - 1
    groups = weight.reshape(len(weight), -1, group_size)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if is_symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = ((high - low) / top).half()
    zeros = torch.full_like(scales, 2 ** (bits - 1)) if is_symmetric else (-low / scales.float()).round().clamp(0, top)
    codes = (groups / scales.float()[..., None] + zeros.float()[..., None]).round().clamp(0, top)
    return codes.reshape(weight.shape).numpy().astype(np.int64), scales, zeros.numpy().astype(np.int64)


def from_groups(codes: np.ndarray, scales: torch.Tensor, zeros: np.ndarray, groups: np.ndarray) -> torch.Tensor:
    """Dequantize number by number: scale x (code - zero), with the group of each input."""
    signed = torch.from_numpy(codes - zeros[:, groups]).float()
    return signed * scales.float()[:, torch.from_numpy(groups)]


def write_gptq(
    weight: torch.Tensor,
    bits: int = 4,
    group_size: int = 32,
    *,
    is_symmetric: bool = False,
    has_order: bool = False,
    zero_shift: int = 1,
) -> Published:
    """Write GPTQ's tensors."""
    size = weight.shape[1] if group_size == -1 else group_size
    order = np.random.default_rng(3).permutation(weight.shape[1]) if has_order else np.arange(weight.shape[1])
    codes, scales, zeros = rounded_groups(weight[:, order], size, bits, is_symmetric=is_symmetric)
    groups = np.empty(weight.shape[1], np.int64)
    groups[order] = np.arange(weight.shape[1]) // size
    in_place = np.empty_like(codes)
    in_place[:, order] = codes
    tensors = {
        "qweight": in_words(in_place, bits).T,
        "qzeros": in_words((zeros.T - zero_shift) % 2**bits, bits),
        "scales": scales.T,
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    return Published(tensors, from_groups(in_place, scales, zeros, groups))


def write_awq(weight: torch.Tensor, group_size: int = 32) -> Published:
    """Write AutoAWQ's tensors of the version gemm."""
    codes, scales, zeros = rounded_groups(weight, group_size, 4)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        "qweight": in_words(codes.T, 4, order),
        "qzeros": in_words(zeros.T, 4, order),
        "scales": scales.T,
    }
    return Published(tensors, from_groups(codes, scales, zeros, np.arange(weight.shape[1]) // group_size))


def write_float8(
    weight: torch.Tensor, rows: int | None = 128, columns: int | None = 128, suffix: str = "weight_scale_inv"
) -> Published:
    """Write e4m3 with a scale for each block; `rows` or `columns` None: as many as there are."""
    rows, columns = rows or len(weight), columns or weight.shape[1]
    scales = torch.zeros(-(-len(weight) // rows), -(-weight.shape[1] // columns))
    codes, meant = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn), torch.zeros(weight.shape)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            scales[i, j] = weight[block].abs().max() / 448
            codes[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            meant[block] = codes[block].float() * scales[i, j]
    return Published({"weight": codes, suffix: scales}, meant)


def write_int8_channels(weight: torch.Tensor) -> Published:
    """Write int8 with a scale per output, as compressed-tensors' int-quantized does."""
    scales = (weight.abs().amax(-1, keepdim=True) / 127).bfloat16()
    codes = (weight / scales.float()).round().clamp(-128, 127).to(torch.int8)
    return Published({"weight": codes, "weight_scale": scales}, codes.float() * scales.float())


def write_packed(
    weight: torch.Tensor, group_size: int = 32, *, is_symmetric: bool = True, has_order: bool = False
) -> Published:
    """Write compressed-tensors' pack-quantized, four bits."""
    order = np.random.default_rng(4).permutation(weight.shape[1]) if has_order else np.arange(weight.shape[1])
    codes, scales, zeros = rounded_groups(weight[:, order], group_size, 4, is_symmetric=is_symmetric)
    groups, in_place = np.empty(weight.shape[1], np.int64), np.empty_like(codes)
    groups[order], in_place[:, order] = np.arange(weight.shape[1]) // group_size, codes
    tensors = {
        "weight_packed": in_words(in_place, 4),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if not is_symmetric:
        tensors["weight_zero_point"] = in_words(zeros.T, 4).T
    if has_order:
        tensors["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return Published(tensors, from_groups(in_place, scales, zeros, groups))


def _nearest(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return (values[..., None] - table).abs().argmin(-1)


def _in_nibbles(codes: torch.Tensor, *, is_high_first: bool) -> torch.Tensor:
    first, second = codes.flatten()[0::2], codes.flatten()[1::2]
    return ((first << 4 | second) if is_high_first else (first | second << 4)).to(torch.uint8)


def write_four_bit_table(
    weight: torch.Tensor, kind: str = "nf4", block: int = 64, *, is_nested: bool = False
) -> Published:
    """Write bitsandbytes' tensors of NF4 or FP4."""
    table = torch.tensor(NF4 if kind == "nf4" else (*FP4, *(-number for number in FP4)))
    blocks = weight.flatten().view(-1, block)
    absmax = blocks.abs().amax(-1)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(weight.shape)}
    nested = {}
    if is_nested:
        size, offset = 4, float(absmax.mean())
        state |= {"nested_blocksize": size, "nested_dtype": "float32", "nested_offset": offset}
        around = (absmax - offset).view(-1, size) if absmax.numel() % size == 0 else None
        assert around is not None, "the test's shapes fill whole blocks of blocks"
        nested_absmax = around.abs().amax(-1)
        nested_map = torch.linspace(-1, 1, 256)
        codes8 = _nearest(around / nested_absmax[:, None], nested_map).flatten()
        absmax = nested_map[codes8] * nested_absmax.repeat_interleave(size) + offset
        nested = {
            "weight.absmax": codes8.to(torch.uint8),
            "weight.nested_absmax": nested_absmax,
            "weight.nested_quant_map": nested_map,
        }
    codes = _nearest(blocks / absmax[:, None], table)
    meant = (table[codes] * absmax[:, None]).view(weight.shape)
    tensors = {
        "weight": _in_nibbles(codes, is_high_first=True)[:, None],
        "weight.absmax": absmax,
        "weight.quant_map": table,
        f"weight.quant_state.bitsandbytes__{kind}": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    return Published(tensors | nested, meant)


def write_mxfp4(weight: torch.Tensor, names: tuple[str, str] = ("weight_blocks", "weight_scales")) -> Published:
    """Write e2m1 with an exponent for 32 inputs each: in blocks, or as compressed-tensors does."""
    table = torch.tensor((*E2M1, *(-number for number in E2M1)))
    groups = weight.view(len(weight), -1, 32)
    exponents = (groups.abs().amax(-1) / 6).log2().ceil()
    scales = torch.pow(2.0, exponents)
    codes = _nearest(groups / scales[..., None], table)
    meant = (table[codes] * scales[..., None]).view(weight.shape)
    packed = _in_nibbles(codes, is_high_first=False)
    shape = (len(weight), -1, 16) if names[0].endswith("blocks") else (len(weight), -1)
    return Published({names[0]: packed.view(shape), names[1]: (exponents + 127).to(torch.uint8)}, meant)


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    """Return a quantization_config of compressed-tensors with one group of layers."""
    given = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"} | weights
    group = {"targets": ["Linear"], "weights": given, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip
