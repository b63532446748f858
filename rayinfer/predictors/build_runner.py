"""Builds the runner of a model folder."""

from pathlib import Path

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.engine.worker.cores import set_threads
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.models.checkpoints.model_folder import is_optimized
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import read_model_config
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.predictors.optimized.optimized_runner import build_optimized_runner, build_script_runner
from rayinfer.predictors.registered import registered_predictor_of
from rayinfer.predictors.runner import Runner
from rayinfer.predictors.runners.decoder_runner import build_decoder_runner
from rayinfer.predictors.runners.image_runner import build_image_runner
from rayinfer.predictors.runners.tensor_runner import TensorRunner
from rayinfer.predictors.runners.text_runner import build_text_runner


def build_runner(config: EngineConfig, folder: Path | None, device: torch.device | None = None) -> Runner:
    """Load a folder's predictor, or the registered one that `config.model` names, by default onto the best device.

    Raises ModelLoadError and ConfigError. The number of threads is set, and the CPU kernels are loaded, for the whole
    process.
    """
    device = device or any_device()
    if config.num_ranks > 1:
        raise ConfigError(f"predictors run on one rank, not on {config.num_ranks}: start more engines instead")
    set_threads(config, device)
    if (registered := registered_predictor_of(config.model, folder)) is not None:
        return TensorRunner(registered, device)
    assert folder is not None, "only registered predictors have none"
    if is_optimized(folder):
        return build_optimized_runner(config, folder, device)
    kind = predictor_kind(folder)
    if kind == "encoder":
        _check_determinism(config, device)
        return build_text_runner(config, folder, device)
    if kind == "decoder":
        return build_decoder_runner(config, folder, device)
    if kind == "tensors":
        return build_script_runner(config, folder, device)
    if kind == "image":
        return build_image_runner(config, folder, device)
    read_model_config(folder)  # which names what it does not know
    raise ModelLoadError(f"{folder} generates text and is no predictor: use LLM, or a folder with modules.json")


def _check_determinism(config: EngineConfig, device: torch.device) -> None:
    dtype = torch_dtype(config.dtype, "float32")
    if config.deterministic and not rayinfer_kernels.is_batch_invariant(device, dtype):
        raise ConfigError(
            f"deterministic must not be true with {dtype} on a {device.type}: only the compiled CPU kernels keep"
            f" results independent of the batch ({rayinfer_kernels.cpu_kernels_status().detail})"
        )
