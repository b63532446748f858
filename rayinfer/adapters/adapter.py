"""A LoRA adapter in memory: a PEFT folder, of which every tensor was checked against the model."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from pathlib import Path

import torch

from rayinfer.adapters.lora_config import LoraConfig, read_lora_config
from rayinfer.adapters.target_layers import TargetLayer, TargetLayers
from rayinfer.errors import AdapterRefused, ModelLoadError
from rayinfer.kv_cache.adapter_id import CONFIG_FILE, WEIGHTS_FILE, AdapterFileRefused, content_digest, read_config_file
from rayinfer.layers.linear import LowRankTerm
from rayinfer.models.checkpoints.checkpoint import TORCH_DTYPES
from rayinfer.models.checkpoints.safetensors_header import TensorEntry, read_open_header

logger = logging.getLogger(__name__)

_PREFIX = "base_model.model."
# How tensors' names end, with and without the adapter's name inside.
_KINDS = {".lora_A.weight": "A", ".lora_B.weight": "B", ".lora_A.default.weight": "A", ".lora_B.default.weight": "B"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterLimits:
    """Largest adapters that an engine takes, and the model's type, in which their numbers must be finite, too."""

    max_rank: int
    max_bytes: int | None = None  # of the tensors as they were saved: max_cpu_lora_bytes
    max_slot_bytes: int | None = None  # of the tensors in the model's type: max_lora_bytes
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """Low-rank terms by the path of the model's layer, as they were saved."""

    digest: str  # of both files' contents
    rank: int  # the largest
    num_bytes: int  # of its tensors
    slot_bytes: int  # of its tensors in the model's type
    terms: Mapping[str, list[LowRankTerm]]


@dataclass(frozen=True, slots=True)
class _Pair:
    module: str  # the layer's name in PEFT's model, where families may have another than `TargetLayers.by_name`
    a: TensorEntry
    b: TensorEntry


def read_adapter(folder: Path, targets: TargetLayers, limits: AdapterLimits) -> Adapter:
    """Read a folder that PEFT saved; raises AdapterRefused, in a line that names the file or the tensor.

    Nothing is read before names, types and shapes are known to be right, so a file has no more bytes than terms of
    `max_rank` for all layers. No other exception is raised, whatever a folder holds: it would end the engine.
    """
    try:
        return _read_adapter(folder, targets, limits)
    except AdapterRefused as error:
        raise AdapterRefused(_printable(str(error))) from None
    except Exception as error:
        logger.warning("adapter %s cannot be read", _printable(str(folder)), exc_info=True)
        message = f"{folder} cannot be read as an adapter: {type(error).__name__}: {error!s:.200}"
        raise AdapterRefused(_printable(message)) from None


def _printable(message: str) -> str:
    """Escape what names may bring along: lone surrogates, which UTF-8 has not, and line breaks."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message)


def _read_adapter(folder: Path, targets: TargetLayers, limits: AdapterLimits) -> Adapter:
    config_text = _config_text(folder)
    config, file = read_lora_config(config_text, folder), folder / WEIGHTS_FILE
    if not file.is_file():
        has_pickle = (folder / "adapter_model.bin").is_file()
        raise AdapterRefused(f"{file} is not there{': save adapter_model.bin as safetensors' * has_pickle}")
    try:
        with file.open("rb") as stream:
            entries = read_open_header(file, stream)
            pairs = _checked_pairs(entries, config, targets, file, limits.max_rank)
            num_bytes, slot_bytes = _checked_sizes(entries, file, limits)
            stream.seek(0)
            data = stream.read()
    except (ModelLoadError, OSError) as error:
        raise AdapterRefused(str(error)) from None
    terms: dict[str, list[LowRankTerm]] = {}
    for name, pair in pairs.items():
        layer = targets.by_name[name]
        a, b = (_tensor(data, entry, file, limits.dtype) for entry in (pair.a, pair.b))
        terms.setdefault(layer.path, []).append(LowRankTerm(a, b, layer.outputs, config.scale_of(pair.module)))
    return Adapter(
        digest=content_digest(config_text, data),
        rank=max(pair.a.shape[0] for pair in pairs.values()),
        num_bytes=num_bytes,
        slot_bytes=slot_bytes,
        terms=terms,
    )


def _config_text(folder: Path) -> bytes:
    try:
        return read_config_file(folder)
    except AdapterFileRefused as error:
        raise AdapterRefused(str(error)) from None
    except OSError as error:
        raise AdapterRefused(f"{folder} is no adapter: {CONFIG_FILE}: {error.strerror}") from None


def _checked_pairs(
    entries: Mapping[str, TensorEntry], config: LoraConfig, targets: TargetLayers, file: Path, max_rank: int
) -> dict[str, _Pair]:
    """Match every tensor with a layer of the model, and every target layer with its two tensors."""
    found: dict[str, dict[str, TensorEntry]] = {}
    modules: dict[str, str] = {}  # PEFT's names of layers
    for name, entry in entries.items():
        ending = next((ending for ending in _KINDS if name.endswith(ending)), None)
        if ending is None or not name.startswith(_PREFIX):
            raise AdapterRefused(f"{file}: tensor {name} is no low-rank term of a linear layer: merge the adapter")
        module = name.removeprefix(_PREFIX).removesuffix(ending)
        if (layer := targets.find(module)) is None:
            raise AdapterRefused(f"{file}: tensor {name} belongs to no layer of the model that takes adapters")
        if not config.is_target(module):
            raise AdapterRefused(f"{file}: tensor {name} belongs to no layer that target_modules names")
        if (other := modules.setdefault(layer, module)) != module:
            raise AdapterRefused(f"{file}: tensor {name} belongs to the same layer as {_PREFIX}{other}")
        kind = _KINDS[ending]
        if kind in found.setdefault(layer, {}):
            raise AdapterRefused(f"{file}: tensor {name} is there twice")
        found[layer][kind] = entry
        _check_tensor(entry, kind, targets.by_name[layer], config.rank_of(module), file, max_rank)
    for layer, module in sorted(_all_modules(targets, modules).items()):
        for kind in "AB" if layer in found or config.is_target(module) else "":
            if kind not in found.get(layer, {}):
                raise AdapterRefused(f"{file}: tensor {_PREFIX}{module}.lora_{kind}.weight is missing")
    if not found:
        raise AdapterRefused(f"{file}: the adapter changes no layer of the model")
    return {layer: _Pair(modules[layer], kinds["A"], kinds["B"]) for layer, kinds in sorted(found.items())}


def _all_modules(targets: TargetLayers, modules: Mapping[str, str]) -> dict[str, str]:
    """Return PEFT's name of each layer: those without tensors begin as the others do."""
    layer, module = next(iter(modules.items()), ("", ""))
    from_behind = zip(reversed(layer), reversed(module), strict=False)
    num_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], from_behind))
    known, own = layer[: len(layer) - num_common], module[: len(module) - num_common]
    renamed = {each: own + each.removeprefix(known) if each.startswith(known) else each for each in targets.by_name}
    return renamed | dict(modules)


def _check_tensor(entry: TensorEntry, kind: str, layer: TargetLayer, rank: int, file: Path, max_rank: int) -> None:
    if rank > max_rank:
        raise AdapterRefused(f"{file}: tensor {entry.name} has rank {rank}, above max_lora_rank {max_rank}")
    wanted = (rank, layer.in_features) if kind == "A" else (len(layer.outputs), rank)
    if entry.shape != wanted:
        raise AdapterRefused(
            f"{file}: tensor {entry.name} has shape {list(entry.shape)}, expected {list(wanted)}: was it trained on"
            " another model?"
        )
    if entry.dtype not in ("F32", "F16", "BF16"):
        raise AdapterRefused(f"{file}: tensor {entry.name} has dtype {entry.dtype}, expected F32, F16 or BF16")


def _checked_sizes(entries: Mapping[str, TensorEntry], file: Path, limits: AdapterLimits) -> tuple[int, int]:
    """Return the bytes of the tensors as they were saved, and in the model's type."""
    num_bytes = sum(entry.num_bytes for entry in entries.values())
    slot_bytes = sum(prod(entry.shape) for entry in entries.values()) * limits.dtype.itemsize
    if limits.max_bytes is not None and num_bytes > limits.max_bytes:
        raise AdapterRefused(f"{file}: tensors of {num_bytes} bytes are above max_cpu_lora_bytes {limits.max_bytes}")
    if limits.max_slot_bytes is not None and slot_bytes > limits.max_slot_bytes:
        raise AdapterRefused(
            f"{file}: tensors of {slot_bytes} bytes in {_name_of(limits.dtype)} are above max_lora_bytes"
            f" {limits.max_slot_bytes}"
        )
    return num_bytes, slot_bytes


def _tensor(data: bytes, entry: TensorEntry, file: Path, dtype: torch.dtype) -> torch.Tensor:
    numbers = bytearray(data[entry.start : entry.start + entry.num_bytes])  # a copy: aligned, and torch may write
    if len(numbers) != entry.num_bytes:
        raise AdapterRefused(f"{file} was changed while it was read")
    tensor = torch.frombuffer(numbers, dtype=TORCH_DTYPES[entry.dtype]).view(entry.shape)
    if not tensor.isfinite().all():
        raise AdapterRefused(f"{file}: tensor {entry.name} holds numbers that are not finite")
    if not tensor.to(dtype).isfinite().all():
        raise AdapterRefused(
            f"{file}: tensor {entry.name} holds numbers that are not finite in the model's {_name_of(dtype)}"
        )
    return tensor


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
