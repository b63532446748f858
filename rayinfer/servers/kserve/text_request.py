"""Requests for text in this protocol's forms: texts and parameters become one validated generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.errors import InvalidParameter, RequestError
from rayinfer.images.inputs import PromptImage
from rayinfer.protocols import Tensor
from rayinfer.servers.generation.prompt_tokens import PromptLimit, tokenize_prompts
from rayinfer.servers.generation.service import PreparedGeneration
from rayinfer.servers.json_decoding import decode_json
from rayinfer.servers.kserve.infer_request import (
    InferRequest,
    InferSettings,
    check_id,
    check_parameters,
    infer_settings,
)
from rayinfer.servers.kserve.model_descriptions import (
    EXCLUDE_INPUT,
    SAMPLING_PARAMETERS,
    STREAM,
    TEXT_INPUT,
    TEXT_OUTPUT,
    text_inputs,
)
from rayinfer.servers.kserve.prompt_images import read_prompt_images
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.sampling_settings import check_num_logprobs, completion_params
from rayinfer.servers.openai.schemas import CompletionBody
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.bad_words import bad_word_tokenizer

# Fields of a completion that mean the same here.
SAMPLING_FIELDS = frozenset(
    (
        *("max_tokens", "temperature", "top_p", "top_k", "min_p", "typical_p", "stop", "seed", "presence_penalty"),
        *("frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens"),
        *("ignore_eos", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "add_special_tokens"),
        *("logprobs", "cache_salt", "user", "speculation"),
    )
)
_OTHER_NAMES = {"stop_words": "stop", "random_seed": "seed"}  # of Triton's TensorRT-LLM backend
_TEXT_FIELDS = frozenset(("stop", "bad_words", "cache_salt", "user", "speculation"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRequest:
    """A validated request for text, one for each of its prompts."""

    id: str
    texts: Sequence[str]
    generation: PreparedGeneration
    details: bool = False  # the finish reason, and log probabilities of tokens
    repeats_input: bool = False  # the output begins with the input
    streams: bool = True  # where the call can; False asks for the whole text at once


def read_generate_body(
    model: ServedModel, limits: RequestLimits, body: Mapping[str, Any], *, streams: bool
) -> TextRequest:
    """Check a body for generate or generate_stream; raises RequestError.

    Parameters stand beside `text_input`, as in Triton, or in an object of their own.
    """
    rest = dict(body)
    text, request_id = rest.pop("text_input", None), check_id(rest.pop("id", None))
    if not isinstance(text, str):
        raise InvalidParameter("text_input must be a string", "text_input")
    rest.pop("model_name", None)
    rest.pop("model_version", None)
    nested = check_parameters(rest.pop("parameters", None), "parameters", allows_lists=True)
    if twice := sorted(rest.keys() & nested.keys()):
        raise InvalidParameter(f"{twice[0]:.80} comes twice: beside parameters and within them", twice[0])
    parameters = check_parameters(rest | nested, "parameters", allows_lists=True)
    if parameters.pop("stream", None) not in ((None, True) if streams else (None, False)):
        path = "generate" if streams else "generate_stream"
        raise InvalidParameter(f"stream: use {path} for that", "stream")
    return text_request(model, limits, [text], infer_settings(parameters), request_id)


def read_text_tensors(model: ServedModel, limits: RequestLimits, request: InferRequest) -> TextRequest:
    """Check an inference request to a language model; raises RequestError."""
    specs = {spec.name: spec for spec in text_inputs(model)}
    for name, tensor in request.inputs.items():
        if name not in specs:
            raise InvalidParameter(
                f"the model {model.name!r} has no input {name!r:.80}; it has {', '.join(specs)}", "inputs"
            )
        if tensor.datatype != specs[name].datatype:
            raise InvalidParameter(f"the input {name!r} must have the datatype {specs[name].datatype}", name)
    if TEXT_INPUT.name not in request.inputs:
        raise InvalidParameter(f"the model {model.name!r} needs the input 'text_input'", "text_input")
    for output in request.outputs or ():
        if output.name != TEXT_OUTPUT.name or output.num_classes:
            raise InvalidParameter("the only output is 'text_output', without classification", "outputs")
    parameters = dict(request.settings.model)
    if STREAM.name in request.inputs:
        parameters[STREAM.name] = bool(_single(request.inputs[STREAM.name]))
    if SAMPLING_PARAMETERS.name in request.inputs:
        parameters |= _sampling_parameters(_single(request.inputs[SAMPLING_PARAMETERS.name]))
    if EXCLUDE_INPUT.name in request.inputs:
        parameters[EXCLUDE_INPUT.name] = bool(_single(request.inputs[EXCLUDE_INPUT.name]))
    settings = InferSettings(priority=request.settings.priority, timeout_s=request.settings.timeout_s, model=parameters)
    texts, images = _texts(request.inputs[TEXT_INPUT.name], limits), read_prompt_images(request.inputs, limits)
    return text_request(model, limits, texts, settings, request.id, images)


def text_request(
    model: ServedModel,
    limits: RequestLimits,
    texts: Sequence[str],
    settings: InferSettings,
    request_id: str,
    images: Sequence[PromptImage] = (),
) -> TextRequest:
    """Check parameters and tokenize texts; raises RequestError. With images there is one text, with their markers."""
    parameters = dict(settings.model)
    details = _flag(parameters, "details", default=False)
    repeats_input = not _flag(parameters, EXCLUDE_INPUT.name, default=True)
    streams = _flag(parameters, STREAM.name, default=True)
    fields = _sampling_fields(parameters)
    if details:
        fields.setdefault("logprobs", 0)
    body = check_schema(CompletionBody, {"prompt": list(texts), **fields})
    body.check_ranges()
    description = model.generator.describe()
    params = completion_params(body, description, limits)
    params = params.with_tokenized_bad_words(bad_word_tokenizer(model.tokenizer))
    prompts = tokenize_prompts(
        _with_images(model, texts, images) if images else texts,
        model.tokenizer,
        description.vocab_size,
        PromptLimit.of(description, TEXT_INPUT.name),
        add_special_tokens=body.add_special_tokens is not False,
    )
    check_num_logprobs(params, prompts, description, limits, echoes=False, stream=False)
    generation = PreparedGeneration(
        model=model,
        params=params,
        prompts=prompts,
        length_field=body.length_field,
        priority=settings.priority,
        cache_salt=body.cache_salt or "",
        timeout_s=settings.timeout_s,
        images=tuple(each.image for each in images),
    )
    return TextRequest(
        id=request_id, texts=texts, generation=generation, details=details, repeats_input=repeats_input, streams=streams
    )


def _sampling_fields(parameters: Mapping[str, Any]) -> dict[str, Any]:
    fields = {_OTHER_NAMES.get(name, name): value for name, value in parameters.items() if value is not None}
    if unknown := sorted(fields.keys() - SAMPLING_FIELDS):
        raise InvalidParameter(f"{unknown[0]:.80} is not supported.", unknown[0], "unsupported_parameter")
    return fields


def _sampling_parameters(text: Any) -> dict[str, Any]:
    """Read an object of JSON, whose numbers may be texts, as Triton's own example sends them."""
    try:
        fields = decode_json(text)
    except RequestError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidParameter("sampling_parameters must be an object of JSON", "sampling_parameters")
    for name, value in fields.items():
        if isinstance(value, str) and name not in _TEXT_FIELDS and name not in _OTHER_NAMES:
            try:
                fields[name] = decode_json(value.encode())
            except RequestError:
                raise InvalidParameter(f"sampling_parameters: {name:.80} must be a number", name) from None
    return fields


def _texts(tensor: Tensor, limits: RequestLimits) -> list[str]:
    if not 1 <= tensor.data.size <= limits.max_prompts:
        raise InvalidParameter(
            f"text_input must hold 1 to {limits.max_prompts} texts, got {tensor.data.size}", "text_input"
        )
    try:
        return [bytes(element).decode() for element in tensor.data.flat]
    except UnicodeDecodeError:
        raise InvalidParameter("text_input must be UTF-8", "text_input") from None


def _with_images(model: ServedModel, texts: Sequence[str], images: Sequence[PromptImage]) -> list[str]:
    """Write the tokens of images in place of their markers."""
    if len(texts) != 1:
        raise InvalidParameter(f"text_input must hold one text beside images, got {len(texts)}", TEXT_INPUT.name)
    assert model.image_prompts is not None, "checked with the inputs"
    return [model.image_prompts.expand(texts[0], [each.size for each in images], TEXT_INPUT.name)]


def _single(tensor: Tensor) -> Any:
    if tensor.data.size != 1:
        raise InvalidParameter(f"the input {tensor.name!r} must have one element", tensor.name)
    return tensor.data.flat[0]


def _flag(parameters: dict[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidParameter(f"{name} must be true or false", name)
    return value
