"""The prompts of completions and chat completions, as token ids."""

from collections.abc import Sequence
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import ModelDescription
from rayinfer.servers.generation.prompt_tokens import PromptLimit, is_integer, tokenize_prompts
from rayinfer.servers.openai.chat_messages import template_messages, template_settings
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.tokenizer import Tokenizer

MAX_PROMPTS = 1024
MAX_CHOICES_PER_REQUEST = 1024  # prompts times n: each of them is a request of its own to an engine


def chat_prompts(body: ChatCompletionBody, model: ServedModel, description: ModelDescription) -> list[list[int]]:
    """Render a conversation and tokenize it: always one prompt."""
    text = model.chat_template.render(template_messages(body.messages), **template_settings(body))
    return tokenize_prompts(
        [text],
        model.tokenizer,
        description.vocab_size,
        PromptLimit.of(description, "messages"),
        add_special_tokens=bool(body.add_special_tokens),
    )


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
    return tokenize_prompts(
        prompts,
        model.tokenizer,
        description.vocab_size,
        PromptLimit.of(description, "prompt", generates=not scores_only),
        add_special_tokens=body.add_special_tokens is not False,
    )


def echoed_texts(body: CompletionBody, prompts: Sequence[list[int]], tokenizer: Tokenizer) -> list[str]:
    """Return the texts that answers begin with: texts as the client wrote them, token ids as they read."""
    skips = body.skip_special_tokens is not False
    return [
        prompt if isinstance(prompt, str) else tokenizer.decode(token_ids, skip_special_tokens=skips)
        for prompt, token_ids in zip(_split_prompts(body.prompt), prompts, strict=True)
    ]


def _split_prompts(prompt: Any) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list):
        prompts = [prompt] if prompt and is_integer(prompt[0]) else prompt
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
