"""The prompts of completions as token ids, and chat completions as requests to the chat core."""

from collections.abc import Sequence
from typing import Any

from rayinfer.errors import InvalidParameter, shown
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.answer_form import AnswerForm
from rayinfer.servers.generation.chat import ChatRequest
from rayinfer.servers.generation.chat_images import ChatImages
from rayinfer.servers.generation.prompt_tokens import PromptLimit, is_integer, tokenize_prompts
from rayinfer.servers.openai.chat_messages import chosen_template, template_messages, template_settings
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody, ConversationBody, PromptBody
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.tokenization.truncation import Truncation
from rayinfer.tool_calls.tools import read_tool_choice


def chat_request(
    body: ChatCompletionBody, model: ServedModel, params: SamplingParams, *, trusts_template: bool
) -> ChatRequest:
    """Make a body's conversation one for the chat core."""
    limit = PromptLimit.of(model.generator.describe(), "messages")
    return ChatRequest(
        model=model,
        params=params,
        messages=template_messages(body.messages),
        template=chosen_template(body, model.chat_template, trusts_request=trusts_template),
        template_settings=template_settings(body),
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        shows_reasoning=body.include_reasoning is not False,
        add_special_tokens=bool(body.add_special_tokens),
        truncation=truncation_of(body, limit, params.max_tokens),
        format_field=body.form_field,
        length_field=body.length_field,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


def conversation_text(
    body: ConversationBody, model: ServedModel, limits: RequestLimits, *, trusts_template: bool
) -> str:
    """Write a body's conversation as the model reads it; raises InvalidParameter."""
    template = chosen_template(body, model.chat_template, trusts_request=trusts_template)
    choice = read_tool_choice(body.tools, body.tool_choice)
    form = AnswerForm.of(template, model.tool_format, choice, model.tokenizer)
    chat = ChatImages.of(template_messages(body.messages), model, limits)
    text = form.render(template, chat.messages, {**template_settings(body), **chat.template_settings})
    return chat.expand(text, model, "messages")


def completion_prompts(
    body: CompletionBody,
    model: ServedModel,
    description: ModelDescription,
    limits: RequestLimits,
    max_tokens: int | None,
) -> list[list[int]]:
    """Tokenize every prompt of a completion, in their order; those that are only scored may fill the context."""
    prompts = _split_prompts(body.prompt, limits)
    limits.check_num_choices(len(prompts), body.n or 1)
    limit = PromptLimit.of(description, "prompt", generates=max_tokens != 0)
    return tokenize_prompts(
        prompts,
        model.tokenizer,
        description.vocab_size,
        limit,
        add_special_tokens=body.add_special_tokens is not False,
        truncation=truncation_of(body, limit, max_tokens),
    )


def truncation_of(body: PromptBody, limit: PromptLimit, max_tokens: int | None) -> Truncation | None:
    """Return the truncation that a body asks for; -1 leaves room for `max_tokens`. Raises InvalidParameter."""
    num_tokens = body.truncate_prompt_tokens
    if num_tokens is None:
        return None
    if num_tokens == -1:
        room = limit.max_model_len - (max_tokens or 0)
        num_tokens = limit.longest_prompt if limit.longest_prompt == limit.max_model_len else max(1, room)
        num_tokens = min(num_tokens, limit.longest_prompt)
    if not 1 <= num_tokens <= limit.longest_prompt:
        raise InvalidParameter(
            f"truncate_prompt_tokens must be -1 or an integer from 1 to {limit.longest_prompt}, "
            f"got {shown(body.truncate_prompt_tokens)}",
            "truncate_prompt_tokens",
        )
    return Truncation(num_tokens, body.truncation_side or "left")


def echoed_texts(
    body: CompletionBody, prompts: Sequence[list[int]], tokenizer: Tokenizer, limits: RequestLimits
) -> list[str]:
    """Return the texts that answers begin with: whole texts as the client wrote them, token ids as they read."""
    skips = body.skip_special_tokens is not False
    is_whole = body.truncate_prompt_tokens is None
    return [
        prompt if isinstance(prompt, str) and is_whole else tokenizer.decode(token_ids, skip_special_tokens=skips)
        for prompt, token_ids in zip(_split_prompts(body.prompt, limits), prompts, strict=True)
    ]


def _split_prompts(prompt: Any, limits: RequestLimits) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list):
        prompts = [prompt] if prompt and is_integer(prompt[0]) else prompt
    else:
        raise InvalidParameter(
            "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids", "prompt"
        )
    limits.check_num_choices(len(prompts), 1)
    if not prompts or any(isinstance(part, str | list) and not part for part in prompts):
        raise InvalidParameter("prompt must not be empty", "prompt")
    if len({type(part) for part in prompts}) > 1 or not isinstance(prompts[0], str | list):
        raise InvalidParameter("prompt must hold only strings, only token ids or only lists of token ids", "prompt")
    return prompts
