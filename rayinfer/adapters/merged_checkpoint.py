"""Checkpoint with an adapter merged into its weights, written tensor by tensor."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from rayinfer.adapters.adapter import Adapter, AdapterLimits, read_adapter
from rayinfer.adapters.target_layers import TargetLayer, TargetLayers
from rayinfer.errors import AdapterRefused, ConfigError, ModelLoadError
from rayinfer.layers.linear import LowRankTerm
from rayinfer.models.checkpoints.checkpoint import TORCH_DTYPES
from rayinfer.models.checkpoints.model_folder import PICKLED_SUFFIXES, is_optimized, weight_files
from rayinfer.models.checkpoints.safetensors_header import TensorEntry, read_safetensors_header
from rayinfer.models.loader import check_checkpoint, empty_decoder
from rayinfer.models.quantized.formats import format_reader

MAX_RANK = 512  # as max_lora_rank may be
ELEMENTS_AT_ONCE = 1 << 22  # of a matrix: 16 MiB in float32
BYTES_AT_ONCE = 16 << 20
WEIGHTS_SUFFIXES = (".safetensors", ".gguf", ".onnx", ".h5", ".msgpack", *PICKLED_SUFFIXES)


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeReport:
    """A merge that is complete."""

    folder: Path
    num_merged: int  # tensors
    num_bytes: int  # of all weights
    rank: int


@dataclass(frozen=True, slots=True)
class _Merge:
    """A tensor of a file, and the term that is added to it."""

    term: LowRankTerm
    is_transposed: bool


def merge_adapter(
    base: Path,
    adapter: Path,
    output: Path,
    *,
    overwrite: bool = False,
    elements_at_once: int = ELEMENTS_AT_ONCE,
    on_start: Callable[[int], None] = lambda num_bytes: None,
    on_progress: Callable[[int], None] = lambda num_bytes: None,
) -> MergeReport:
    """Write the base model with W + scale x B A in place of each W that the adapter changes, in the base's own types.

    Files are written in turn, at most some megabytes of a matrix in memory, into a folder beside the output that takes
    its place at the end. `on_start` gets the number of bytes, `on_progress` those written since its last call. Raises
    AdapterRefused for what serving would refuse, ModelLoadError, ConfigError.
    """
    output = output.expanduser().resolve()
    _check_output(base.resolve(), adapter.resolve(), output, overwrite=overwrite)
    if (reader := format_reader(base)) is not None:
        raise ConfigError(f"{base} is quantized ({reader.description}): merge into the checkpoint it was made from")
    if is_optimized(base):
        raise ConfigError(f"{base} was written by rayinfer optimize: merge into the checkpoint it was made from")
    check_checkpoint(base)
    targets = TargetLayers(empty_decoder(base))
    read = read_adapter(adapter, targets, AdapterLimits(max_rank=MAX_RANK))
    files = {file: read_safetensors_header(file) for file in weight_files(base)}
    merges = _merges(files, targets, read)
    num_bytes = sum(file.stat().st_size for file in files)
    _check_disk(output.parent, num_bytes)
    on_start(num_bytes)
    unfinished = output.with_name(f".{output.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _copy_other_files(base, unfinished)
        for file, entries in files.items():
            for num_written in _write_file(file, unfinished / file.name, entries, merges, elements_at_once):
                on_progress(num_written)
        _take_place(unfinished, output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return MergeReport(folder=output, num_merged=len(merges), num_bytes=num_bytes, rank=read.rank)


def _take_place(unfinished: Path, output: Path) -> None:
    replaced = output.with_name(f".{output.name}.replaced")
    if output.exists():
        output.rename(replaced)
    unfinished.rename(output)
    shutil.rmtree(replaced, ignore_errors=True)


def _check_output(base: Path, adapter: Path, output: Path, *, overwrite: bool) -> None:
    for source in (base, adapter):
        if output == source or output in source.parents or source in output.parents:
            raise ConfigError(f"the output {output} must lie apart from {source}")
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"the output {output} is a file")
    if not any(output.iterdir()):
        return
    if not overwrite:
        raise ConfigError(f"the output {output} exists: --overwrite replaces it")
    if not (output / "config.json").is_file():
        raise ConfigError(f"the output {output} is no model folder, and is not replaced")


def _check_disk(parent: Path, num_bytes: int) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(parent).free) < num_bytes:
        raise ConfigError(f"the merged checkpoint takes {num_bytes:,} bytes, and {parent} has {free:,} free")


def _merges(
    files: Mapping[Path, Mapping[str, TensorEntry]], targets: TargetLayers, adapter: Adapter
) -> dict[str, _Merge]:
    """Return what is added to each tensor, by its name in the checkpoint; every term has one."""
    terms = {(path, term.outputs): term for path, found in adapter.terms.items() for term in found}
    merges: dict[str, _Merge] = {}
    for entries in files.values():
        for name, entry in entries.items():
            layer = _layer_of(name, targets)
            if layer is None or (term := terms.get((layer.path, layer.outputs))) is None:
                continue
            if entry.dtype not in ("F32", "F16", "BF16"):
                raise ModelLoadError(f"tensor {name} has dtype {entry.dtype}, expected F32, F16 or BF16")
            merges[name] = _Merge(term, layer.is_transposed)
    if missing := len(terms) - len({id(merge.term) for merge in merges.values()}):
        raise ModelLoadError(f"the checkpoint lacks {missing} of the {len(terms)} layers that the adapter changes")
    return merges


def _layer_of(name: str, targets: TargetLayers) -> TargetLayer | None:
    if not name.endswith(".weight"):
        return None
    known = targets.find(name.removesuffix(".weight"))
    return None if known is None else targets.by_name[known]


def _copy_other_files(base: Path, folder: Path) -> None:
    """Carry along settings, tokenizer and code, but no weights in other formats."""
    for path in sorted(base.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.suffix not in WEIGHTS_SUFFIXES:
            if path.name.endswith(".index.json") and not path.name.endswith(".safetensors.index.json"):
                continue
            shutil.copyfile(path, folder / path.name)


def _write_file(
    source: Path,
    target: Path,
    entries: Mapping[str, TensorEntry],
    merges: Mapping[str, _Merge],
    elements_at_once: int,
) -> Iterator[int]:
    """Write a file with the same header, its tensors without gaps as reading has checked; yields numbers of bytes."""
    with source.open("rb") as reading, target.open("wb") as writing:
        header_bytes = min((entry.start for entry in entries.values()), default=source.stat().st_size)
        for piece in _pieces(reading, header_bytes, source):
            yield writing.write(piece)
        for name, entry in entries.items():
            reading.seek(entry.start)
            merge = merges.get(name)
            pieces = (
                _pieces(reading, entry.num_bytes, source)
                if merge is None
                else _merged_pieces(reading, entry, merge, source, elements_at_once)
            )
            for piece in pieces:
                yield writing.write(piece)


def _pieces(stream: BinaryIO, num_bytes: int, file: Path) -> Iterator[bytes]:
    while num_bytes:
        piece = stream.read(min(num_bytes, BYTES_AT_ONCE))
        if not piece:
            raise ModelLoadError(f"{file} was changed while it was read")
        num_bytes -= len(piece)
        yield piece


def _merged_pieces(
    stream: BinaryIO, entry: TensorEntry, merge: _Merge, file: Path, elements_at_once: int
) -> Iterator[bytes]:
    """Yield the bytes of a matrix with its term added in float32, some rows at a time."""
    dtype, (num_rows, num_columns) = TORCH_DTYPES[entry.dtype], entry.shape
    left, right = merge.term.b.float() * merge.term.scale, merge.term.a.float()
    if merge.is_transposed:
        left, right = right.mT, left.mT
    rows_at_once = max(1, elements_at_once // num_columns)
    for first in range(0, num_rows, rows_at_once):
        rows = slice(first, min(first + rows_at_once, num_rows))
        num_bytes = (rows.stop - first) * num_columns * dtype.itemsize
        data = bytearray(stream.read(num_bytes))
        if len(data) != num_bytes:
            raise ModelLoadError(f"{file} was changed while it was read")
        weight = torch.frombuffer(data, dtype=dtype).view(-1, num_columns)
        merged = torch.addmm(weight.float(), left[rows], right).to(dtype)
        if not merged.isfinite().all():
            raise AdapterRefused(f"{file}: tensor {entry.name} has numbers beyond {entry.dtype} once it is merged")
        yield merged.contiguous().view(torch.uint8).numpy().tobytes()
