"""From bodies of the Responses API to requests of the chat core."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayinfer.errors import InvalidParameter, PromptTooLong, ResourceNotFound
from rayinfer.servers.generation.chat import ChatRequest, PreparedChat, prepare_chat
from rayinfer.servers.generation.chat_params import single_params
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.responses.items import input_items, template_messages
from rayinfer.servers.openai.responses.schemas import ResponsesBody
from rayinfer.servers.openai.responses.store import StoredResponse
from rayinfer.servers.openai.sampling_settings import check_num_logprobs
from rayinfer.servers.openai.schemas import check_cache_salt, check_priority
from rayinfer.servers.served_model import ServedModel

_GIVEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "speculation")
LOGPROBS = "message.output_text.logprobs"
# What clients may ask to be included; the others are of tools that are not there, or without effect.
_INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponsesRequest:
    """A validated request: its prompt, the items of its input and the conversation that it belongs to."""

    body: ResponsesBody
    chat: PreparedChat
    items: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]  # earlier turns and this one's input, without instructions

    @property
    def is_stored(self) -> bool:
        """Whether clients may come back to the response."""
        return self.body.store is not False


def responses_request(
    body: ResponsesBody,
    model: ServedModel,
    service: GenerationService,
    find_previous: Callable[[str], StoredResponse],
) -> ResponsesRequest:
    """Check a body and tokenize its conversation; raises RequestError."""
    _check_fields(body)
    items = input_items(body.input)
    messages = [*_earlier_messages(body, find_previous), *template_messages(items)]
    if not messages:
        raise InvalidParameter("input must hold at least one item", "input")
    description = model.generator.describe()
    service.limits.check_num_logprobs("top_logprobs", body.top_logprobs)
    given = {name: getattr(body, name) for name in _GIVEN}
    given["logprobs"] = (body.top_logprobs or 0) if _has_logprobs(body) else None
    params = single_params(
        description,
        service.limits,
        given,
        max_tokens=body.max_output_tokens,
        names={"max_tokens": "max_output_tokens", "response_format": "text.format", "logprobs": "top_logprobs"},
        response_format=_response_format(body),
    )
    request = ChatRequest(
        model=model,
        params=params,
        messages=_with_instructions(body, messages),
        template_settings={}
        if body.reasoning is None or body.reasoning.effort is None
        else {"reasoning_effort": body.reasoning.effort},
        tools=_openai_tools(body.tools),
        tool_choice=_openai_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        messages_field="input",
        format_field="text.format",
        length_field=None if body.max_output_tokens is None else "max_output_tokens",
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )
    chat = _prepare_truncated(request, service) if body.truncation == "auto" else prepare_chat(request, service)
    # Streams keep them as well, in the response at their end.
    check_num_logprobs(chat.params, [chat.prompt], description, service.limits, echoes=False, stream=False)
    return ResponsesRequest(body=body, chat=chat, items=items, messages=messages)


def _has_logprobs(body: ResponsesBody) -> bool:
    return LOGPROBS in (body.include or ())


def _check_fields(body: ResponsesBody) -> None:
    for field in ("conversation", "prompt"):
        if getattr(body, field):
            raise _unsupported(field)
    for name in body.include or ():
        if name not in _INCLUDABLE:
            raise InvalidParameter(f"include: {name!r:.80} is not supported.", "include", "unsupported_parameter")
    if body.top_logprobs and not _has_logprobs(body):
        raise InvalidParameter(f"top_logprobs is only allowed with {LOGPROBS!r} in include.", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter("stream_options is only allowed with stream=true.", "stream_options")
    if body.background and body.store is False:
        raise InvalidParameter("background needs store: the answer is to be fetched later.", "background")
    if body.background and body.stream:
        raise InvalidParameter(
            "background is not supported in streams; fetch the response instead.", "background", "unsupported_parameter"
        )
    if body.max_output_tokens is not None and not 1 <= body.max_output_tokens < 2**31:
        raise InvalidParameter("max_output_tokens must be an integer from 1", "max_output_tokens")
    check_priority(body.priority)
    check_cache_salt(body.cache_salt)


def _earlier_messages(
    body: ResponsesBody, find_previous: Callable[[str], StoredResponse]
) -> Sequence[Mapping[str, Any]]:
    if body.previous_response_id is None:
        return ()
    try:
        previous = find_previous(body.previous_response_id)
    except ResourceNotFound as error:
        raise InvalidParameter(error.message, "previous_response_id", "previous_response_not_found") from None
    if previous.body["status"] not in ("completed", "incomplete"):
        raise InvalidParameter(
            f"the previous response is {previous.body['status']}: it has no answer to go on from",
            "previous_response_id",
        )
    return previous.messages


def _with_instructions(body: ResponsesBody, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Put instructions first, in one message with a system message that is there."""
    if not body.instructions:
        return list(messages)
    if messages[0]["role"] == "system":
        content = f"{body.instructions}\n\n{messages[0]['content']}"
        return [{**messages[0], "content": content}, *messages[1:]]
    return [{"role": "system", "content": body.instructions}, *messages]


def _prepare_truncated(request: ChatRequest, service: GenerationService) -> PreparedChat:
    """Prepare a conversation without the fewest of its oldest messages that leave room; the last one stays."""
    try:
        return prepare_chat(request, service)
    except PromptTooLong as error:
        refusal = error
    kept = [message for message in request.messages[:1] if message["role"] == "system"]
    others = request.messages[len(kept) :]
    found, low, high = None, 1, len(others) - 1
    while low <= high:
        middle = (low + high) // 2
        try:
            found = prepare_chat(replace(request, messages=[*kept, *others[middle:]]), service)
            high = middle - 1
        except PromptTooLong:
            low = middle + 1
    if found is None:
        raise refusal
    return found


def _openai_tools(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return function tools in the form of chat completions; raises InvalidParameter for built-in ones."""
    if tools is None:
        return None
    result = []
    for position, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise InvalidParameter(
                f"tools.{position}: tools of type {tool.get('type')!r:.80} are not supported, only function",
                f"tools.{position}.type",
                "unsupported_parameter",
            )
        if not isinstance(tool.get("name"), str):
            raise InvalidParameter(f"tools.{position}.name must be a string", f"tools.{position}.name")
        function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}
        result.append({"type": "function", "function": function})
    return result


def _openai_tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        tools = [_chosen_function(each) for each in choice["tools"]]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}
    return _chosen_function(choice)


def _chosen_function(choice: Any) -> dict[str, Any]:
    if not isinstance(choice, dict) or choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise InvalidParameter(
            "tool_choice must be none, auto, required, a function with its name, or allowed_tools with a mode and such"
            " functions",
            "tool_choice",
        )
    return {"type": "function", "function": {"name": choice["name"]}}


def _response_format(body: ResponsesBody) -> dict[str, Any] | None:
    form = None if body.text is None else body.text.format
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}


def _unsupported(field: str) -> InvalidParameter:
    return InvalidParameter(f"{field} is not supported by this service.", field, "unsupported_parameter")
