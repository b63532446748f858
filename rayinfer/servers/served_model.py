"""A served model, and lookup by model name."""

from collections.abc import Mapping
from dataclasses import dataclass

from rayinfer.errors import InvalidParameter, NotReady, UnknownModel
from rayinfer.protocols import EngineControl, TextGenerator
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer

# Sent by `text-generation` and `huggingface_hub` where a protocol has them name a model.
PLACEHOLDERS = frozenset({"tgi", "dummy"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """Everything a protocol needs to serve one model."""

    name: str
    generator: TextGenerator
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    created: int  # seconds since 1970
    engines: EngineControl | None = None  # where they can be controlled


def find_model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    """Look a model up; without a name the only one is meant. Raises UnknownModel, InvalidParameter or NotReady."""
    if not models:
        raise NotReady("No model is loaded yet.")
    if name is None or (name in PLACEHOLDERS and name not in models):
        if len(models) > 1:
            raise InvalidParameter(
                f"model is required: this service serves more than one: {', '.join(models)}", "model"
            )
        return next(iter(models.values()))
    if name not in models:
        raise UnknownModel(f"The model {name!r} does not exist. Served here: {', '.join(models)}.", "model")
    return models[name]
