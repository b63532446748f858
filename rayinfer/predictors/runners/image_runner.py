"""Runner of image classifiers, by the classes of transformers."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rayinfer.config import EngineConfig
from rayinfer.engine.worker.cores import cores_of, usable_cores
from rayinfer.errors import ConfigError, InvalidParameter, ModelLoadError, UnsupportedArchitecture
from rayinfer.models.checkpoints.model_folder import weight_files
from rayinfer.models.config_fields import RawConfig, read_json
from rayinfer.models.encoders.encoder_config import read_labels
from rayinfer.models.loader import torch_dtype
from rayinfer.predictions import PredictorDescription
from rayinfer.predictors.runner import RunnerItem, RunnerResult
from rayinfer.predictors.runners.activations import classifier_activation
from rayinfer.predictors.runners.fused_convolutions import fuse_convolutions
from rayinfer.predictors.runners.image_processing import ImageProcessing, read_image_processing
from rayinfer.predictors.runners.image_threads import Compute, ImageThreads, image_threads

CLASSIFIERS: Mapping[str, str] = MappingProxyType(
    {
        "MobileNetV2ForImageClassification": "mobilenet_v2.modeling_mobilenet_v2",
        "ResNetForImageClassification": "resnet.modeling_resnet",
        "ViTForImageClassification": "vit.modeling_vit",
    }
)

IMAGES_AT_ONCE = 64  # in memory


class ImageRunner:
    """A loaded classifier; each image is computed alone, so none depends on others, with `threads` several at once.

    `compute` turns pixels [1, 3, height, width] into logits [1, num_labels].
    """

    max_input_tokens = 0
    vocab_size = 0

    def __init__(
        self,
        compute: Compute,
        processing: ImageProcessing,
        description: PredictorDescription,
        dtype: torch.dtype,
        device: torch.device,
        threads: ImageThreads | None = None,
    ) -> None:
        self._compute, self._processing, self.threads = compute, processing, threads
        self._dtype, self._device = dtype, device
        self.description = description

    @torch.inference_mode()
    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """See Runner."""
        for index, item in enumerate(batch):
            self._check(item, item.name or f"item {index}")
        at_once = None if len(batch) < 2 else self.threads
        return list(map(self._numbers, batch) if at_once is None else at_once.run(self._numbers, batch))

    def run_lazily(self, make: Callable[[int], RunnerItem], count: int) -> Iterator[RunnerResult]:
        """Make each of so many items by its number, on all cores, and compute it; few are in memory at once.

        Where threads compute images side by side, the one that has made an item computes it, too.
        """

        def made(number: int) -> RunnerItem:
            item = make(number)
            self._check(item, item.name or f"item {number}")
            return item

        if self.threads is not None and count > 1:
            yield from self.threads.run(lambda number: self._numbers(made(number)), range(count))
            return
        with ThreadPoolExecutor(max(1, min(count, len(usable_cores()))), "images") as threads:
            for first in range(0, count, IMAGES_AT_ONCE):
                for item in threads.map(made, range(first, min(count, first + IMAGES_AT_ONCE))):
                    with torch.inference_mode():
                        numbers = self._numbers(item)
                    yield numbers

    def resize(self, item: RunnerItem) -> RunnerItem:
        """Bring an image to the model's size, as engines decode it."""
        assert item.pixels is not None, "an item of this model has an image"
        return RunnerItem(task=item.task, pixels=np.ascontiguousarray(self._processing.resize(item.pixels)))

    def tensors(self, item: RunnerItem) -> torch.Tensor:
        """Return the model's input [1, 3, height, width] of an image."""
        assert item.pixels is not None, "an item of this model has an image"
        pixels = item.pixels
        if pixels.dtype == np.uint8:  # else it is normalized already
            pixels = (self._processing.normalize if item.is_resized else self._processing.run)(pixels)
        image = torch.from_numpy(pixels)[None]
        return (image if self.threads is not None else image.contiguous()).to(self._device, self._dtype)

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the model's input."""
        return self._processing.input_size

    def close(self) -> None:
        """See Runner."""
        if self.threads is not None:
            self.threads.close()
        del self._compute, self.threads

    def _numbers(self, item: RunnerItem) -> npt.NDArray[np.float32]:
        numbers: npt.NDArray[np.float32] = self._compute(self.tensors(item))[0].float().cpu().numpy()
        return numbers

    def _check(self, item: RunnerItem, place: str) -> None:
        pixels, size = item.pixels, self._processing.input_size
        if item.task != "classify":
            raise InvalidParameter(f"{place}: task {item.task!r} is not one of this model's: classify", "task")
        if pixels is not None and pixels.dtype == np.float32 and pixels.shape == (3, *size):
            if not np.isfinite(pixels).all():
                raise InvalidParameter(f"{place}: the image has numbers that are not finite", "input")
            return
        if pixels is None or pixels.dtype.str != "|u1" or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            found = "nothing" if pixels is None else f"{pixels.dtype} {list(pixels.shape)}"
            raise InvalidParameter(
                f"{place}: an image must be uint8 [height, width, 3], or float32 {[3, *size]} that is normalized,"
                f" got {found}",
                "input",
            )
        if item.is_resized and pixels.shape[:2] != size:
            raise InvalidParameter(f"{place}: a resized image must be {size}, got {pixels.shape[:2]}", "input")


def build_image_runner(config: EngineConfig, folder: Path, device: torch.device) -> ImageRunner:
    """Load a classifier's folder; raises ModelLoadError and ConfigError."""
    raw = read_json(folder / "config.json")
    _classifier_name(raw, folder)
    if config.quantization is not None:
        raise ConfigError(f"quantization {config.quantization!r} is not supported for image classifiers")
    weight_files(folder)
    dtype = torch_dtype(config.dtype, str(raw.get("dtype") or raw.get("torch_dtype") or "float32"))
    model = load_classifier(folder, dtype).to(device)
    if device.type != "cpu":
        return image_runner(folder, model, dtype, device)
    size = read_image_processing(folder).input_size
    compute = _compute_of(fuse_convolutions(model, size))
    threads = image_threads(compute, torch.ones(1, 3, *size, dtype=dtype), cores_of(config, device))
    return computed_image_runner(folder, compute, dtype, device, threads)


def image_runner(folder: Path, model: torch.nn.Module, dtype: torch.dtype, device: torch.device) -> ImageRunner:
    """Put the runner around a classifier of transformers, or one with its interface."""
    return computed_image_runner(folder, _compute_of(model), dtype, device)


def _compute_of(model: torch.nn.Module) -> Compute:
    return lambda image: model(pixel_values=image).logits


def computed_image_runner(
    folder: Path, compute: Compute, dtype: torch.dtype, device: torch.device, threads: ImageThreads | None = None
) -> ImageRunner:
    """Put the runner around a function of pixels, by the settings of the classifier's folder."""
    raw = read_json(folder / "config.json")
    processing = read_image_processing(folder)
    try:
        labels = read_labels(raw)
    except ValueError as error:
        raise ModelLoadError(f"{folder / 'config.json'}: {error}") from None
    description = PredictorDescription(
        tasks=("classify",),
        labels=labels,
        activation=classifier_activation(raw) if len(labels) > 1 else "sigmoid",
        image_size=processing.image_size,
    )
    return ImageRunner(compute, processing, description, dtype, device, threads)


def load_classifier(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """Load transformers' model of a folder, in eval mode; raises ModelLoadError."""
    classifier, name = _classifier_class(folder)
    try:
        with _without_progress_bar():
            model = classifier.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"{folder}: {name} cannot be loaded: {reason}") from error
    return model.eval()  # type: ignore[no-any-return]


@contextlib.contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar for a load of a fraction of a second."""
    bars = importlib.import_module("transformers.utils.logging")
    was_enabled = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            bars.enable_progress_bar()


def empty_classifier(folder: Path) -> torch.nn.Module:
    """Build transformers' model of a folder without its weights."""
    classifier, name = _classifier_class(folder)
    try:
        return classifier(classifier.config_class.from_pretrained(folder)).eval()  # type: ignore[no-any-return]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"{folder}: {name} cannot be built: {reason}") from error


def _classifier_class(folder: Path) -> tuple[Any, str]:
    name = _classifier_name(read_json(folder / "config.json"), folder)
    # By name: texts need nothing of transformers.
    return getattr(importlib.import_module(f"transformers.models.{CLASSIFIERS[name]}"), name), name


def _classifier_name(raw: RawConfig, folder: Path) -> str:
    name = str(raw["architectures"][0])
    if name not in CLASSIFIERS:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'}: image classifier {name!r} is not supported, only {', '.join(CLASSIFIERS)}"
        )
    return name
