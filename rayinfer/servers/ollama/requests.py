"""From Ollama's bodies to requests of the chat core."""

from collections.abc import Sequence
from typing import Any

from fastapi import Request

from rayinfer.errors import InvalidParameter, UnknownModel
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.caller import find_usable_model, usable_models
from rayinfer.servers.generation.chat import ChatRequest, PreparedChat, prepare_chat
from rayinfer.servers.generation.chat_params import single_params
from rayinfer.servers.generation.prompt_tokens import PromptLimit, tokenize_prompts
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.ollama.schemas import OllamaChatBody, OllamaGenerateBody, OllamaMessage, OllamaOptions
from rayinfer.servers.served_model import ServedModel
from rayinfer.tool_calls.detection import has_reasoning

TAG = ":latest"  # of all our models

_SAME_NAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "stop", "presence_penalty", "frequency_penalty"),
    "speculation",
)
_NAMES = {
    "response_format": "format",
    "repetition_penalty": "options.repeat_penalty",
    "max_tokens": "options.num_predict",
}
_NAMES |= {name: f"options.{name}" for name in (*_SAME_NAME, "seed")}


def find_tagged_model(request: Request, service: GenerationService, name: str | None) -> ServedModel:
    """Look up a model by its name with or without the tag; raises RequestError."""
    if not name:
        raise InvalidParameter("model is required", "model")
    if name not in service.models and name.endswith(TAG):
        name = name.removesuffix(TAG)
    try:
        return find_usable_model(request, service.models, name, "generate")
    except UnknownModel as error:
        if usable_models(request, service.models):
            raise UnknownModel(f"model '{name[:200]}' not found", "model", error.code) from None
        raise


def chat_of(body: OllamaChatBody, model: ServedModel, service: GenerationService) -> PreparedChat:
    """Prepare a conversation; raises RequestError."""
    messages = [_message(message, position) for position, message in enumerate(body.messages or ())]
    return prepare_chat(_request(body, messages, model, service, "messages"), service)


def completion_of(body: OllamaGenerateBody, model: ServedModel, service: GenerationService) -> PreparedChat:
    """Prepare a prompt: as a conversation of one message, or as it is where it is raw. Raises RequestError."""
    for field in ("suffix", "template", "context"):
        if getattr(body, field):
            refuse(field)
    if body.raw and body.images:
        raise InvalidParameter("images is not supported with raw: a raw prompt has no places for them", "images")
    messages: list[dict[str, Any]] = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": _content(body.prompt, body.images, "images")})
    request = _request(body, messages, model, service, "prompt")
    if not body.raw:
        return prepare_chat(request, service)
    text = body.prompt or ""
    description = model.generator.describe()
    limit = PromptLimit.of(description, "prompt")
    prompts = tokenize_prompts([text], model.tokenizer, description.vocab_size, limit, add_special_tokens=True)
    service.check_supports_grammars(model, request.params, request.format_field)
    return PreparedChat(
        request=request, text=text, prompt=prompts[0], params=request.params, form_field=request.format_field
    )


def refuse(field: str) -> None:
    """Raise InvalidParameter for a field that asks for what the service does not do."""
    raise InvalidParameter(f"{field} is not supported by this service.", field, "unsupported_parameter")


def _request(
    body: OllamaChatBody | OllamaGenerateBody,
    messages: list[dict[str, Any]],
    model: ServedModel,
    service: GenerationService,
    field: str,
) -> ChatRequest:
    options = body.options or OllamaOptions()
    settings: dict[str, Any] = {}
    if body.think and not has_reasoning(model.chat_template.text_for(has_tools=False)):
        raise InvalidParameter(f"{model.name!r:.200} does not support thinking", "think", "unsupported_parameter")
    if body.think is not None:
        settings["enable_thinking"] = bool(body.think)
        if isinstance(body.think, str):
            settings["reasoning_effort"] = body.think
    return ChatRequest(
        model=model,
        params=_params(body, options, model, service),
        messages=messages,
        template_settings=settings,
        tools=body.tools if isinstance(body, OllamaChatBody) else None,
        messages_field=field,
        format_field="format",
        length_field=None if _num_predict(options) is None else "options.num_predict",
    )


def _response_format(form: Any) -> dict[str, Any] | None:
    """Return `format`, which is "json" or a schema, in OpenAI's form; raises InvalidParameter."""
    if form is None or form == "":
        return None
    if form == "json":
        return {"type": "json_object"}
    if not isinstance(form, dict):
        raise InvalidParameter('format must be "json" or a JSON schema', "format")
    return {"type": "json_schema", "json_schema": {"name": "format", "schema": form, "strict": True}}


def _num_predict(options: OllamaOptions) -> int | None:
    """Return how many tokens are wanted; Ollama's -1 and -2 are for no limit but the context."""
    number = options.num_predict
    if number is None or number in (-1, -2):
        return None
    if not 1 <= number < 2**31:
        raise InvalidParameter(
            f"options.num_predict must be -1 or an integer from 1, got {number}", "options.num_predict"
        )
    return number


def _params(
    body: OllamaChatBody | OllamaGenerateBody, options: OllamaOptions, model: ServedModel, service: GenerationService
) -> SamplingParams:
    if options.mirostat:
        refuse("options.mirostat")
    given = {field: getattr(options, field) for field in _SAME_NAME}
    given["seed"] = None if options.seed == -1 else options.seed
    given["repetition_penalty"] = options.repeat_penalty
    return single_params(
        model.generator.describe(),
        service.limits,
        given,
        max_tokens=_num_predict(options),
        names=_NAMES,
        response_format=_response_format(body.format),
    )


def _message(message: OllamaMessage, position: int) -> dict[str, Any]:
    parts = _content(message.content, message.images, f"messages.{position}.images")
    content: dict[str, Any] = {"role": message.role, "content": parts}
    if message.tool_calls:
        content["tool_calls"] = [{"type": "function", **call} for call in message.tool_calls]
    if message.tool_name is not None:
        content["name"] = message.tool_name
    if message.thinking is not None:
        content["reasoning_content"] = message.thinking
    return content


def _content(text: str | None, images: Sequence[Any] | None, field: str) -> str | list[dict[str, Any]]:
    """Return a message's text; with images its parts in the form of chat completions, the images first."""
    if not images:
        return text or ""
    parts: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        if not isinstance(image, str) or not image or ":" in image[:8]:
            raise InvalidParameter(f"{field}.{number} must be an image in base64", f"{field}.{number}")
        parts.append({"type": "image_url", "image_url": {"url": f"data:;base64,{image}"}})
    return [*parts, {"type": "text", "text": text}] if text else parts
