"""Checks of engines that have a draft model, and of the model that is to draft for another."""

import importlib
from pathlib import Path

import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.models.architectures.registry import architecture_class
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.eagle3 import is_eagle3_folder, read_eagle3_config
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.tokenization.tokenizer import Tokenizer

_FEWEST_LAYERS = 6  # of which a low, a middle and a high one are read


def check_draft_model(config: EngineConfig, folder: Path, model: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError where `draft_model` is given to an engine, or names a model, with which it cannot work.

    Raises ModelNotFound and ModelLoadError for that model as for any other.
    """
    if config.draft_model is None:
        return
    if device.type != "cpu":
        raise ConfigError(f"draft_model is for engines on a CPU so far, this one runs on {device.type}")
    if model.seq2seq is not None:
        raise ConfigError("draft_model is for decoders: steps of encoder-decoders verify no drafts")
    if config.engine == "static":
        raise ConfigError("draft_model needs engine 'dynamic': steps of static engines verify no drafts")
    other_folder = draft_folder(config.draft_model)
    if is_eagle3_folder(other_folder):
        if (num_stages := config.pipeline_parallel_size) > 1:
            raise ConfigError(
                f"draft_model {config.draft_model!r} is a head, which reads states of several layers: with"
                f" pipeline_parallel_size {num_stages} these are in different processes"
            )
        _check_head(config.draft_model, read_eagle3_config(other_folder), model)
        return
    draft = read_model_config(other_folder)
    if draft.seq2seq is not None:
        raise ConfigError(f"draft_model {config.draft_model!r} is an encoder-decoder, and drafts come from decoders")
    texts, draft_texts = (Tokenizer.from_folder(each).vocabulary() for each in (folder, other_folder))
    if texts != draft_texts:
        differing = {text for text, _ in texts.items() ^ draft_texts.items()}
        raise ConfigError(
            f"draft_model {config.draft_model!r} has another tokenizer than the model: {len(differing)} tokens differ,"
            f" as {min(differing)!r}"
        )


def draft_folder(name: str) -> Path:
    """Return the folder of a draft model, or of a head, which has no tokenizer; raises as `resolve_model` does."""
    path = Path(name).expanduser().absolute()
    if is_eagle3_folder(path):
        return path
    # By name: engines without a draft model load nothing that downloads one.
    folder: Path = importlib.import_module("rayinfer.models.checkpoints.sources").resolve_model(name)
    return folder


def _check_head(name: str, head: ModelConfig, model: ModelConfig) -> None:
    for field in ("hidden_size", "vocab_size"):
        if (own := getattr(head, field)) != (wanted := getattr(model, field)):
            raise ConfigError(f"draft_model {name!r} is a head of another model: {field} {own}, not {wanted}")
    decoder = architecture_class(model.architecture)
    is_plain = isinstance(decoder, type) and issubclass(decoder, CausalDecoder)
    if not is_plain or decoder.forward is not CausalDecoder.forward or decoder.embed is not CausalDecoder.embed:
        raise ConfigError(f"draft_model {name!r} is a head, which {model.architecture} has no states for")
    if model.num_layers < _FEWEST_LAYERS:
        raise ConfigError(f"draft_model {name!r} is a head of models with {_FEWEST_LAYERS} layers or more")
