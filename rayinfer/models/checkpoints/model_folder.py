"""Validation of model folders: configuration, safetensors and tokenizer (no torch here)."""

import json
from pathlib import Path

from rayinfer.errors import ModelLoadError
from rayinfer.tokenization.foreign_tokenizer import foreign_tokenizer_class

SINGLE_WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
REQUIRED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")  # instead of a tokenizer.json
IMAGE_SETTINGS = "preprocessor_config.json"
OPTIMIZED_MANIFEST = "rayinfer_optimized.json"  # of `rayinfer optimize`
TENSOR_SCHEMA = "tensors.json"  # inputs and outputs beside a TorchScript archive
REGISTERED_PREDICTOR = "registered_predictor"  # the only field of such a folder's config.json

IMAGE_CLASSIFIER = "ForImageClassification"  # how the names of such architectures end; they have no tokenizer
PICKLED_SUFFIXES = (".bin", ".pt", ".pth")


def check_model_folder(folder: Path) -> None:
    """Raise ModelLoadError that names the first file missing from `folder`.

    A loader compares the files of an optimized model with its manifest.
    """
    if is_optimized(folder) or (folder / TENSOR_SCHEMA).is_file() or registered_name(folder) is not None:
        return
    if (folder / IMAGE_SETTINGS).is_file() and not (folder / "tokenizer_config.json").is_file():
        weight_files(folder)  # of a model that reads images alone
        return
    is_marian = all((folder / name).is_file() for name in MARIAN_FILES)
    for name in REQUIRED_FILES:
        if (folder / name).is_file():
            continue
        may_lack = name == "tokenizer.json" and (is_marian or foreign_tokenizer_class(folder) is not None)
        may_lack |= name != "config.json" and _takes_images(folder)
        if not may_lack:
            raise ModelLoadError(f"{folder / name} is missing: a model folder needs {', '.join(REQUIRED_FILES)}")
    weight_files(folder)


def write_registered_folder(name: str, folder: Path) -> None:
    """Write the folder of a predictor that a package registers by an entry point; it holds the name alone."""
    (folder / "config.json").write_text(json.dumps({REGISTERED_PREDICTOR: name}))


def registered_name(folder: Path) -> str | None:
    """Return the predictor's name where `write_registered_folder` wrote the folder."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    name = raw.get(REGISTERED_PREDICTOR) if isinstance(raw, dict) else None
    return name if isinstance(name, str) else None


def is_optimized(folder: Path) -> bool:
    """Return whether `rayinfer optimize` wrote the folder."""
    return (folder / OPTIMIZED_MANIFEST).is_file()


def _takes_images(folder: Path) -> bool:
    try:
        architectures = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures")
    except (ValueError, AttributeError):
        return False
    return any(str(name).endswith(IMAGE_CLASSIFIER) for name in architectures or ())


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a checkpoint, every one of them present; a single file goes before an index."""
    if (folder / SINGLE_WEIGHTS).is_file():
        return [folder / SINGLE_WEIGHTS]
    if (folder / WEIGHTS_INDEX).is_file():
        return [folder / name for name in sorted(set(read_weight_map(folder).values()))]
    if any(path.suffix in PICKLED_SUFFIXES for path in folder.glob("*")):
        raise ModelLoadError(f"{folder} holds pickled weights only (.bin, .pt, .pth); only safetensors are read")
    raise ModelLoadError(f"{folder / SINGLE_WEIGHTS} is missing, and there is no {WEIGHTS_INDEX} either")


def read_weight_map(folder: Path) -> dict[str, str]:
    """Read which shard holds which tensor; raises ModelLoadError when the index is broken or a shard is missing."""
    index = folder / WEIGHTS_INDEX
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{index} is no index of safetensors shards: {type(error).__name__}: {error}") from None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index} is no index of safetensors shards: its weight_map is empty")
    for shard in sorted(map(str, set(weight_map.values()))):
        if Path(shard).name != shard:
            raise ModelLoadError(f"{index} names a shard outside its folder: {shard!r}")
        if not (folder / shard).is_file():
            raise ModelLoadError(f"{folder / shard} is missing, though {WEIGHTS_INDEX} names it")
    return weight_map
