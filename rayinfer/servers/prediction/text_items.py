"""Texts, pairs of texts and lists of token ids as items within the limits of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.errors import InvalidParameter, shown
from rayinfer.predictions import PredictionInput, PredictionTask, PredictorDescription
from rayinfer.protocols import ModelDescription
from rayinfer.servers.generation.prompt_tokens import PromptLimit, is_integer, tokenize_prompts
from rayinfer.servers.prediction.service import PredictionItem
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.truncation import Truncation, TruncationSide


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSettings:
    """Settings of the tokenization of a request's texts."""

    truncate_to: int | None = None  # tokens to keep; -1: as many as the model takes; None: longer ones are refused
    truncate_field: str = "truncate_prompt_tokens"  # by which the client chose that
    truncation_side: TruncationSide = "right"  # where tokens are removed
    add_special_tokens: bool = True
    prompt: str = ""  # put before each text

    def truncation(self, limit: PromptLimit) -> Truncation | None:
        """Return the truncation to at most what a model takes; raises InvalidParameter."""
        if self.truncate_to is None:
            return None
        num_tokens = limit.longest_prompt if self.truncate_to == -1 else self.truncate_to
        if not 1 <= num_tokens <= limit.longest_prompt:
            raise InvalidParameter(
                f"{self.truncate_field} must be -1 or an integer from 1 to {limit.longest_prompt}, "
                f"got {shown(self.truncate_to)}",
                self.truncate_field,
            )
        return Truncation(num_tokens, self.truncation_side)


def text_items(
    inputs: Sequence[str | list[Any]],
    model: ServedModel,
    task: PredictionTask,
    param: str,
    settings: TextSettings,
) -> list[PredictionItem]:
    """Make an item of each text or list of token ids; raises InvalidParameter and PromptTooLong."""
    description = _check_takes_text(model, param)
    limit = PromptLimit.of(description, param, generates=False)
    prompts = [settings.prompt + each if isinstance(each, str) else each for each in inputs]
    token_ids = tokenize_prompts(
        prompts,
        model.tokenizer,
        description.vocab_size,
        limit,
        add_special_tokens=settings.add_special_tokens,
        truncation=settings.truncation(limit),
    )
    return [PredictionItem(each, PredictionInput(task=task)) for each in token_ids]


def pair_items(
    pairs: Sequence[tuple[str, str]],
    model: ServedModel,
    task: PredictionTask,
    param: str,
    settings: TextSettings,
) -> list[PredictionItem]:
    """Make an item of each pair, by the tokenizer's own template; raises InvalidParameter and PromptTooLong."""
    limit = PromptLimit.of(_check_takes_text(model, param), param, generates=False)
    truncation = settings.truncation(limit)
    tokenizer = model.tokenizer
    if truncation is None:
        for first, second in pairs:
            least = tokenizer.least_num_tokens(first) + tokenizer.least_num_tokens(second)
            if least:
                limit.check(least, at_least="at least ")
    items = []
    for first, second in pairs:
        pair = tokenizer.encode_pair(first, second, truncation=truncation)
        limit.check(len(pair.token_ids))
        prediction = PredictionInput(task=task, num_first_tokens=pair.num_first_tokens)
        items.append(PredictionItem(pair.token_ids, prediction))
    return items


def split_inputs(value: Any, limits: RequestLimits, param: str) -> list[str | list[Any]]:
    """Return the inputs of a text, a list of texts, a list of token ids or a list of such; raises InvalidParameter."""
    if isinstance(value, list) and value and is_integer(value[0]):
        value = [value]
    inputs = [value] if isinstance(value, str) else value
    if not isinstance(inputs, list):
        raise InvalidParameter(
            f"{param} must be a string, a list of strings, a list of token ids or a list of lists of token ids", param
        )
    limits.check_num_inputs(len(inputs), param)
    if len({type(each) for each in inputs}) > 1 or not isinstance(inputs[0], str | list):
        raise InvalidParameter(f"{param} must hold only strings, only token ids or only lists of token ids", param)
    if any(not each for each in inputs):
        raise InvalidParameter(f"{param} must not be empty, nor hold anything empty", param)
    return inputs


def named_prompt(description: PredictorDescription, name: str | None) -> str:
    """Return the instruction that is put before texts, by its name or the model's default; raises InvalidParameter."""
    if name is None:
        return description.prompts.get(description.default_prompt_name, "")
    if name not in description.prompts:
        known = ", ".join(description.prompts) or "none"
        raise InvalidParameter(
            f"prompt_name must be one of the model's prompts ({known}), got {shown(name)}", "prompt_name"
        )
    return description.prompts[name]


def _check_takes_text(model: ServedModel, param: str) -> ModelDescription:
    description = model.generator.describe()
    if description.predictor is not None and description.predictor.image_size:
        raise InvalidParameter(f"{param}: the model {model.name!r} takes images", param)
    return description
