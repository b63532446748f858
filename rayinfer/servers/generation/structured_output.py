"""The form that a request holds its answer to, from the fields of each protocol."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rayinfer.errors import InvalidParameter, shown
from rayinfer.grammars.grammar_checks import GrammarChecks
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.servers.served_model import ServedModel

_TGI_KINDS = ("json", "json_schema", "regex")


def openai_form(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> StructuredOutputsParams | None:
    """Read OpenAI's field and vLLM's, of which at most one may be given; raises InvalidParameter."""
    of_format = None if response_format is None else _of_response_format(response_format)
    if of_format is not None and structured_outputs is not None:
        raise InvalidParameter("structured_outputs is not allowed beside response_format", "structured_outputs")
    return of_format if structured_outputs is None else StructuredOutputsParams.of(structured_outputs)


def tgi_form(grammar: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """Read TGI's field; raises InvalidParameter."""
    if grammar is None:
        return None
    kind, value = grammar.get("type"), grammar.get("value")
    if kind not in _TGI_KINDS:
        raise InvalidParameter(f"grammar.type must be one of {', '.join(_TGI_KINDS)}, got {shown(kind)}", "grammar")
    if kind == "json_schema" and isinstance(value, Mapping):
        value = value.get("schema")
    if value is None:
        raise InvalidParameter("grammar.value is missing", "grammar")
    return _in_field("grammar", {"regex": value} if kind == "regex" else {"json": value})


def check_supports_grammars(model: ServedModel, field: str) -> None:
    """Raise InvalidParameter, with the client's field, for a model whose answers are held to no grammar."""
    if not model.generator.describe().supports_structured_outputs:
        raise InvalidParameter(f"{field} is not supported by this model.", field, "unsupported_parameter")


async def check_grammar(checks: GrammarChecks, model: ServedModel, spec: StructuredOutputsParams, field: str) -> None:
    """Raise InvalidParameter, with the client's field, for a grammar that does not compile.

    An engine compiles it, for the request that follows; `checks` do where there is none.
    """
    try:
        if not await model.generator.compile_grammar(spec):
            await asyncio.wrap_future(checks.start(spec, model.tokenizer.special_texts))
    except InvalidParameter as error:
        message = error.message
        if field != "structured_outputs":
            message = message.replace(f"structured_outputs.{spec.kind}", field, 1)
        raise InvalidParameter(message, field, error.code) from None


def _of_response_format(form: Mapping[str, Any]) -> StructuredOutputsParams | None:
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "json_schema":
        named = form.get("json_schema")
        if not isinstance(named, Mapping) or named.get("schema") is None:
            raise InvalidParameter("response_format.json_schema.schema is missing", "response_format")
        return _in_field("response_format", {"json": named["schema"]})
    if kind == "structural_tag":
        return _in_field("response_format", {"structural_tag": dict(form)})
    names = "text, json_object, json_schema, structural_tag"
    raise InvalidParameter(f"response_format.type must be one of {names}, got {shown(kind)}", "response_format")


def _in_field(field: str, settings: Mapping[str, Any]) -> StructuredOutputsParams:
    try:
        return StructuredOutputsParams.of(settings)
    except InvalidParameter as error:
        raise InvalidParameter(f"{field}: {error.message}", field, error.code) from None
