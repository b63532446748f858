"""Checks of engines that have a draft model, and of the model that is to draft for another."""

from pathlib import Path

import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.tokenization.tokenizer import Tokenizer


def check_draft_model(config: EngineConfig, folder: Path, model: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError where `draft_model` is given to an engine, or names a model, with which it cannot work.

    Raises ModelNotFound and ModelLoadError for that model as for any other.
    """
    if config.draft_model is None:
        return
    if device.type != "cpu":
        raise ConfigError(f"draft_model is for engines on a CPU so far, this one runs on {device.type}")
    if config.num_ranks > 1:
        raise ConfigError(f"draft_model needs an engine of one rank, this one has {config.num_ranks}")
    if model.seq2seq is not None:
        raise ConfigError("draft_model is for decoders: steps of encoder-decoders verify no drafts")
    if config.engine == "static":
        raise ConfigError("draft_model needs engine 'dynamic': steps of static engines verify no drafts")
    if config.async_scheduling:
        raise ConfigError("draft_model must be left out with async_scheduling: overlapped steps verify no drafts")
    draft_folder = resolve_model(config.draft_model)
    draft = read_model_config(draft_folder)
    if draft.seq2seq is not None:
        raise ConfigError(f"draft_model {config.draft_model!r} is an encoder-decoder, and drafts come from decoders")
    texts, draft_texts = (Tokenizer.from_folder(each).vocabulary() for each in (folder, draft_folder))
    if texts != draft_texts:
        differing = {text for text, _ in texts.items() ^ draft_texts.items()}
        raise ConfigError(
            f"draft_model {config.draft_model!r} has another tokenizer than the model: {len(differing)} tokens differ,"
            f" as {min(differing)!r}"
        )
