"""The predictor that is optimized, in float32: its runner, its graph and the digest of its weights."""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from rayinfer.config import EngineConfig, engine_config
from rayinfer.errors import ConfigError, NotSupported
from rayinfer.models.checkpoints.model_folder import OPTIMIZED_MANIFEST, TENSOR_SCHEMA, is_optimized, weight_files
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.predictors.build_runner import build_runner
from rayinfer.predictors.optimized.graph_modules import GraphModule, image_graph, tensor_graph, text_graph
from rayinfer.predictors.optimized.module_digest import module_digest
from rayinfer.predictors.registered import RegisteredPredictor, find_registered_predictor
from rayinfer.predictors.runner import Runner, RunnerItem
from rayinfer.predictors.runners.image_runner import ImageRunner
from rayinfer.tokenization.tokenizer import Tokenizer

WEIGHT_SUFFIXES = frozenset((".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot", ".gguf"))
WEIGHT_INDEX = ".safetensors.index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """A loaded predictor."""

    name: str
    kind: Literal["encoder", "image", "tensors"]
    runner: Runner
    config: EngineConfig
    device: torch.device
    folder: Path | None  # None: it is registered
    registered: RegisteredPredictor | None = None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of a model of texts."""
        return Tokenizer.from_folder(self.folder) if self.kind == "encoder" and self.folder is not None else None

    def graph(self, items: Sequence[RunnerItem]) -> GraphModule:
        """Build the module that is exported; `items` are examples of its inputs."""
        if self.folder is not None and self.kind == "encoder":
            return text_graph(self.folder, self.runner.max_input_tokens)
        if self.folder is not None:
            assert isinstance(self.runner, ImageRunner)
            return image_graph(self.folder, self.runner.input_size)
        assert self.registered is not None, "a predictor has a folder or is registered"
        return _registered_graph(self.registered, items)

    def digest(self) -> str:
        """Return the SHA-256 of its weights."""
        if self.folder is None:
            return module_digest(self.module())
        digest = hashlib.sha256()
        for file in sorted(each for each in self.folder.rglob("*") if each.suffix == ".safetensors"):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    def module(self) -> torch.nn.Module:
        """Build a registered predictor's module; raises ConfigError for a function."""
        assert self.registered is not None, "only registered predictors are modules of their own"
        module = self.registered.factory()
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"predictor {self.name!r} is a function: only torch modules can be optimized")
        return module.eval()

    def copy_settings(self, out: Path, *, with_weights: bool) -> None:
        """Copy the folder without its checkpoint, or with it."""
        if self.folder is None:
            return
        for file in sorted(each for each in self.folder.rglob("*") if each.is_file()):
            name = file.relative_to(self.folder)
            is_hidden = any(part.startswith(".") for part in name.parts)
            # Layers behind the pooling lie in folders of their own, and are read from there.
            is_checkpoint = len(name.parts) == 1 and (
                file.suffix in WEIGHT_SUFFIXES or file.name.endswith(WEIGHT_INDEX)
            )
            is_kept = with_weights and (file in weight_files(self.folder) or file.name.endswith(WEIGHT_INDEX))
            if is_hidden or (is_checkpoint and not is_kept) or (len(name.parts) > 1 and _is_foreign(name)):
                continue
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, out / name)


def load_original(model: str, device: torch.device) -> Original:
    """Load a predictor in float32; raises NotSupported for models that generate, and what Predictor raises."""
    config = engine_config(model=model, dtype="float32")
    if (registered := find_registered_predictor(model)) is not None:
        runner = build_runner(config, None, device)
        return Original(
            name=model, kind="tensors", runner=runner, config=config, device=device, folder=None, registered=registered
        )
    folder = resolve_model(model)
    if is_optimized(folder) or (folder / TENSOR_SCHEMA).is_file():
        raise NotSupported(f"{folder} has {OPTIMIZED_MANIFEST} or {TENSOR_SCHEMA}: optimize the model it was made of")
    kind = predictor_kind(folder)
    if kind not in ("encoder", "image"):
        what = "generates text" if kind is None else "is a decoder"
        raise NotSupported(
            f"{model} {what}: its weights are packed, and kept in the cache folder, by its first start with"
            " --quantization int8-dynamic, int8, int4 or fp8, or --dtype bfloat16; `rayinfer bench quality` measures"
            " the loss"
        )
    runner = build_runner(config, folder, device)
    return Original(name=model, kind=kind, runner=runner, config=config, device=device, folder=folder)


def _is_foreign(name: Path) -> bool:
    """Return whether a file is of another form of the model, not of sentence-transformers' modules."""
    return name.suffix in WEIGHT_SUFFIXES - {".safetensors"} or name.parts[0] in ("onnx", "openvino", "coreml")


def _registered_graph(registered: RegisteredPredictor, items: Sequence[RunnerItem]) -> GraphModule:
    module = registered.factory()
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"predictor {registered.name!r} is a function: only torch modules can be optimized")
    free: dict[str, list[int]] = {}
    for spec in registered.inputs:
        if spec.shape is None:
            raise ConfigError(f"input {spec.name!r} needs a shape, -1 for a dimension of any size")
        free[spec.name] = [index for index, size in enumerate(spec.shape) if size == -1]
    for item in items:
        shapes = {name: item.tensors[name].shape for name in free}
        if all(shapes[name][index] > 1 for name in free for index in free[name]):
            example = {name: torch.from_numpy(item.tensors[name].copy()) for name in free}
            return tensor_graph(module, example, free, [spec.name for spec in registered.outputs])
    raise ConfigError("one sample must have 2 or more in all dimensions of any size: with 1 they would be fixed to it")
