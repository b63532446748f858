"""From Anthropic's bodies to requests of the chat core."""

from typing import Any

from rayinfer.errors import InvalidParameter, shown
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.anthropic.messages import conversation, openai_tool_choice, openai_tools
from rayinfer.servers.anthropic.schemas import CountTokensBody, MessagesBody, Thinking
from rayinfer.servers.generation.chat import ChatRequest
from rayinfer.servers.generation.chat_params import single_params
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.served_model import ServedModel

_GIVEN = ("temperature", "top_p", "top_k", "speculation")
_MIN_BUDGET_TOKENS = 1024


def message_request(body: MessagesBody, model: ServedModel, service: GenerationService) -> ChatRequest:
    """Make a body's conversation one for the chat core; raises RequestError."""
    for field in ("container", "mcp_servers"):
        if getattr(body, field):
            raise InvalidParameter(f"{field} is not supported by this service.", field, "unsupported_parameter")
    if not 1 <= body.max_tokens < 2**31:
        raise InvalidParameter(f"max_tokens must be an integer from 1, got {shown(body.max_tokens)}", "max_tokens")
    given = {**{field: getattr(body, field) for field in _GIVEN}, "stop": body.stop_sequences}
    params = single_params(
        model.generator.describe(),
        service.limits,
        given,
        max_tokens=body.max_tokens,
        names={"stop": "stop_sequences", "response_format": "output_config.format"},
        response_format=_response_format(body),
    )
    return conversation_request(body, model, params)


def conversation_request(body: CountTokensBody, model: ServedModel, params: SamplingParams) -> ChatRequest:
    """Make a conversation one for the chat core; an assistant's last message is continued. Raises RequestError."""
    messages = conversation(body.system, body.messages)
    continues = body.messages[-1].role == "assistant"
    choice = body.tool_choice
    return ChatRequest(
        model=model,
        params=params,
        messages=messages,
        template_settings={
            "continue_final_message": continues,
            "add_generation_prompt": not continues,
            **_reasoning_settings(body),
        },
        tools=openai_tools(body.tools),
        tool_choice=openai_tool_choice(choice),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        format_field="output_config.format",
        length_field="max_tokens",
    )


def _response_format(body: CountTokensBody) -> dict[str, Any] | None:
    form = None if body.output_config is None else body.output_config.format
    if form is None:
        return None
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise InvalidParameter("output_config.format must be a json_schema with its schema", "output_config.format")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"], "strict": True}}


def _reasoning_settings(body: CountTokensBody) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if body.thinking is not None:
        _check_budget(body, body.thinking)
        settings["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        settings["reasoning_effort"] = body.output_config.effort
    return settings


def _check_budget(body: CountTokensBody, thinking: Thinking) -> None:
    """Raise InvalidParameter for a budget that Anthropic's API would not take; it is a target, not a bound."""
    budget, field = thinking.budget_tokens, "thinking.budget_tokens"
    if thinking.type != "enabled":
        if budget is not None:
            raise InvalidParameter(f"{field} is only allowed beside the type enabled", field)
        return
    if budget is None:
        raise InvalidParameter(f"{field} is required beside the type enabled", field)
    if budget < _MIN_BUDGET_TOKENS:
        raise InvalidParameter(f"{field} must be an integer from {_MIN_BUDGET_TOKENS}, got {shown(budget)}", field)
    if isinstance(body, MessagesBody) and budget >= body.max_tokens:
        raise InvalidParameter(f"{field} must be less than max_tokens, got {shown(budget)}", field)
