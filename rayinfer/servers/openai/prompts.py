"""Prompts as token ids, checked against the vocabulary and the context before anything is generated."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rayinfer.errors import InvalidParameter, PromptTooLong
from rayinfer.protocols import ModelDescription
from rayinfer.servers.openai.chat_messages import template_messages, template_settings
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.tokenizer import Tokenizer

MAX_PROMPTS = 1024
_LONG_TEXT_CHARS = 8192  # a longer text is tokenised in a thread, so that nobody else's tokens wait for it


async def chat_prompts(body: ChatCompletionBody, model: ServedModel, description: ModelDescription) -> list[list[int]]:
    """Render a conversation and tokenise it: always one prompt."""
    text = model.chat_template.render(template_messages(body.messages), **template_settings(body))
    token_ids = await _encode(model.tokenizer, text, bool(body.add_special_tokens))
    _check_prompt(token_ids, description, "messages")
    return [token_ids]


async def completion_prompts(
    body: CompletionBody, model: ServedModel, description: ModelDescription
) -> list[list[int]]:
    """Tokenise every prompt of a completion request, in their order."""
    adds_special_tokens = body.add_special_tokens is not False
    prompts = []
    for prompt in _split_prompts(body.prompt):
        if isinstance(prompt, str):
            token_ids = await _encode(model.tokenizer, prompt, adds_special_tokens)
        else:
            token_ids = _checked_token_ids(prompt, description.vocab_size)
        _check_prompt(token_ids, description, "prompt")
        prompts.append(token_ids)
    return prompts


def _split_prompts(prompt: Any) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list):
        prompts = [prompt] if prompt and _is_integer(prompt[0]) else prompt
    else:
        raise InvalidParameter(
            "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids", "prompt"
        )
    if not prompts or any(isinstance(part, str | list) and not part for part in prompts):
        raise InvalidParameter("prompt must not be empty", "prompt")
    if len(prompts) > MAX_PROMPTS:
        raise InvalidParameter(f"prompt must hold at most {MAX_PROMPTS} prompts, got {len(prompts)}", "prompt")
    if len({type(part) for part in prompts}) > 1 or not isinstance(prompts[0], str | list):
        raise InvalidParameter("prompt must hold only strings, only token ids or only lists of token ids", "prompt")
    return prompts


def _checked_token_ids(token_ids: list[Any], vocab_size: int) -> list[int]:
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


def _check_prompt(token_ids: list[int], description: ModelDescription, param: str) -> None:
    if not token_ids:
        raise InvalidParameter(f"{param} must hold at least one token", param)
    if len(token_ids) >= description.max_model_len:
        raise PromptTooLong(
            f"This model's maximum context length is {description.max_model_len} tokens. "
            f"The prompt has {len(token_ids)} tokens, which leaves no room for an answer.",
            param,
            "context_length_exceeded",
        )


async def _encode(tokenizer: Tokenizer, text: str, adds_special_tokens: bool) -> list[int]:
    if len(text) <= _LONG_TEXT_CHARS:
        return tokenizer.encode(text, add_special_tokens=adds_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=adds_special_tokens)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
