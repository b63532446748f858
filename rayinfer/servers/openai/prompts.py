"""Prompts as token ids, checked against the vocabulary and the context before anything is generated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.errors import InvalidParameter, PromptTooLong
from rayinfer.protocols import ModelDescription
from rayinfer.servers.openai.chat_messages import template_messages, template_settings
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.tokenizer import Tokenizer

MAX_PROMPTS = 1024
MAX_CHOICES_PER_REQUEST = 1024  # prompts times n: each of them is a request of its own to an engine


@dataclass(frozen=True, slots=True)
class _Context:
    """The longest prompt that may come, and which field of the body brings it."""

    max_model_len: int
    longest_prompt: int
    param: str

    def check(self, num_tokens: int, *, at_least: str = "") -> None:
        if num_tokens == 0:
            raise InvalidParameter(f"{self.param} must hold at least one token", self.param)
        if num_tokens > self.longest_prompt:
            reason = ", which leaves no token for an answer" if self.longest_prompt < self.max_model_len else ""
            raise PromptTooLong(
                f"This model's maximum context length is {self.max_model_len} tokens. "
                f"The prompt has {at_least}{num_tokens} tokens{reason}.",
                self.param,
                "context_length_exceeded",
            )


def chat_prompts(body: ChatCompletionBody, model: ServedModel, description: ModelDescription) -> list[list[int]]:
    """Render a conversation and tokenize it: always one prompt."""
    text = model.chat_template.render(template_messages(body.messages), **template_settings(body))
    context = _Context(description.max_model_len, description.longest_prompt(), "messages")
    return _tokenize([text], bool(body.add_special_tokens), model.tokenizer, description.vocab_size, context)


def completion_prompts(
    body: CompletionBody, model: ServedModel, description: ModelDescription, *, scores_only: bool = False
) -> list[list[int]]:
    """Tokenize every prompt of a completion, in their order; those that are only scored may fill the context."""
    prompts = _split_prompts(body.prompt)
    num_choices = len(prompts) * (body.n or 1)
    if num_choices > MAX_CHOICES_PER_REQUEST:
        raise InvalidParameter(
            f"{len(prompts)} prompts with n={body.n} make {num_choices} choices, "
            f"a request may ask for {MAX_CHOICES_PER_REQUEST}",
            "n",
        )
    longest = description.longest_prompt(generates=not scores_only)
    context = _Context(description.max_model_len, longest, "prompt")
    adds_special_tokens = body.add_special_tokens is not False
    return _tokenize(prompts, adds_special_tokens, model.tokenizer, description.vocab_size, context)


def echoed_texts(body: CompletionBody, prompts: Sequence[list[int]], tokenizer: Tokenizer) -> list[str]:
    """Return the texts that answers begin with: texts as the client wrote them, token ids as they read."""
    skips = body.skip_special_tokens is not False
    return [
        prompt if isinstance(prompt, str) else tokenizer.decode(token_ids, skip_special_tokens=skips)
        for prompt, token_ids in zip(_split_prompts(body.prompt), prompts, strict=True)
    ]


def _tokenize(
    prompts: Sequence[str | list[Any]],
    adds_special_tokens: bool,
    tokenizer: Tokenizer,
    vocab_size: int,
    context: _Context,
) -> list[list[int]]:
    """Turn prompts into token ids; what surely does not fit is refused before any work is done on it."""
    for prompt in prompts:
        _check_size(prompt, tokenizer, context)

    all_token_ids = []
    for prompt in prompts:
        if isinstance(prompt, str):
            token_ids = tokenizer.encode(prompt, add_special_tokens=adds_special_tokens, check_length=context.check)
        else:
            token_ids = _checked_token_ids(prompt, vocab_size)
        context.check(len(token_ids))
        all_token_ids.append(token_ids)
    return all_token_ids


def _split_prompts(prompt: Any) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list):
        prompts = [prompt] if prompt and _is_integer(prompt[0]) else prompt
    else:
        raise InvalidParameter(
            "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids", "prompt"
        )
    if len(prompts) > MAX_PROMPTS:
        raise InvalidParameter(f"prompt must hold at most {MAX_PROMPTS} prompts, got {len(prompts)}", "prompt")
    if not prompts or any(isinstance(part, str | list) and not part for part in prompts):
        raise InvalidParameter("prompt must not be empty", "prompt")
    if len({type(part) for part in prompts}) > 1 or not isinstance(prompts[0], str | list):
        raise InvalidParameter("prompt must hold only strings, only token ids or only lists of token ids", "prompt")
    return prompts


def _checked_token_ids(token_ids: list[Any], vocab_size: int) -> list[int]:
    # Without a loop of ours: prompts have thousands of tokens, and the one at fault is looked for where there is one.
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return token_ids
    for position, token_id in enumerate(token_ids):
        if not _is_integer(token_id):
            raise InvalidParameter(f"prompt: the token id at position {position} is not an integer", "prompt")
        if not 0 <= token_id < vocab_size:
            raise InvalidParameter(
                f"prompt: token ids must lie in the vocabulary, 0 to {vocab_size - 1}, "
                f"got {token_id} at position {position}",
                "prompt",
            )
    return token_ids


def _check_size(prompt: str | list[Any], tokenizer: Tokenizer, context: _Context) -> None:
    """Refuse what cannot fit however it is tokenized, before any work is done on it."""
    if isinstance(prompt, list):
        context.check(len(prompt))
    elif (least := tokenizer.least_num_tokens(prompt)) > 0:
        context.check(least, at_least="at least ")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
