"""Prompts as token ids, checked against the vocabulary and the context before anything is generated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.errors import InvalidParameter, PromptTooLong, shown
from rayinfer.protocols import ModelDescription
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.tokenization.truncation import Truncation


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt that may come, and which field of the body brings it."""

    max_model_len: int
    longest_prompt: int
    param: str

    @classmethod
    def of(cls, description: ModelDescription, param: str, *, generates: bool = True) -> "PromptLimit":
        """Return the limit of a model's prompts, which leaves room for a token where one is generated."""
        return cls(description.max_model_len, description.longest_prompt(generates=generates), param)

    def check(self, num_tokens: int, *, at_least: str = "") -> None:
        """Raise InvalidParameter for an empty prompt and PromptTooLong for one that does not fit."""
        if num_tokens == 0:
            raise InvalidParameter(f"{self.param} must hold at least one token", self.param)
        if num_tokens > self.longest_prompt:
            reason = ", which leaves no token for an answer" if self.longest_prompt < self.max_model_len else ""
            raise PromptTooLong(
                f"This model's maximum context length is {self.max_model_len} tokens. "
                f"The prompt is too long: it has {at_least}{num_tokens} tokens{reason}.",
                self.param,
                "context_length_exceeded",
            )


def tokenize_prompts(
    prompts: Sequence[str | list[Any]],
    tokenizer: Tokenizer,
    vocab_size: int,
    limit: PromptLimit,
    *,
    add_special_tokens: bool,
    truncation: Truncation | None = None,
) -> list[list[int]]:
    """Turn texts and lists of token ids into token ids.

    What surely does not fit is refused before any work is done on it, unless it is truncated. Raises InvalidParameter
    and PromptTooLong.
    """
    if truncation is not None:
        return [_truncated(prompt, tokenizer, vocab_size, limit, add_special_tokens, truncation) for prompt in prompts]
    for prompt in prompts:
        _check_size(prompt, tokenizer, limit)

    all_token_ids = []
    for prompt in prompts:
        if isinstance(prompt, str):
            token_ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens, check_length=limit.check)
        else:
            token_ids = _checked_token_ids(prompt, vocab_size, limit.param)
        limit.check(len(token_ids))
        all_token_ids.append(token_ids)
    return all_token_ids


def _truncated(
    prompt: str | list[Any],
    tokenizer: Tokenizer,
    vocab_size: int,
    limit: PromptLimit,
    add_special_tokens: bool,
    truncation: Truncation,
) -> list[int]:
    if isinstance(prompt, str):
        token_ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens, truncation=truncation)
    else:
        token_ids = truncation.cut(_checked_token_ids(prompt, vocab_size, limit.param))
    limit.check(len(token_ids))
    return token_ids


def is_integer(value: Any) -> bool:
    """Return whether a value of JSON is an integer, which 5.0 is."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _checked_token_ids(token_ids: list[Any], vocab_size: int, param: str) -> list[int]:
    # Without a loop of ours: prompts have thousands of tokens, and the one at fault is looked for where there is one.
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return token_ids
    for position, token_id in enumerate(token_ids):
        if not is_integer(token_id):
            raise InvalidParameter(f"{param}: the token id at position {position} is not an integer", param)
        if not 0 <= token_id < vocab_size:
            raise InvalidParameter(
                f"{param}: token ids must lie in the vocabulary, 0 to {vocab_size - 1}, "
                f"got {shown(token_id)} at position {position}",
                param,
            )
    return [int(token_id) for token_id in token_ids]


def _check_size(prompt: str | list[Any], tokenizer: Tokenizer, limit: PromptLimit) -> None:
    """Refuse what cannot fit however it is tokenized, before any work is done on it."""
    if isinstance(prompt, list):
        limit.check(len(prompt))
    elif (least := tokenizer.least_num_tokens(prompt)) > 0:
        limit.check(least, at_least="at least ")
