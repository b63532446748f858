"""`POST /v2/embed`, as Cohere has it: embeddings of texts in several types of numbers at once."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter, NotSupported, PromptTooLong
from rayinfer.prediction_outputs import check_dimensions, embedding
from rayinfer.predictions import PredictionOutput, PredictorDescription
from rayinfer.servers.caller import find_usable_model, request_context
from rayinfer.servers.openai.priority_header import header_priority
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.schemas import check_priority
from rayinfer.servers.pooling.schemas import CohereEmbedBody
from rayinfer.servers.prediction.number_encoding import (
    FloatArray,
    base64_numbers,
    check_finite,
    json_list,
    json_numbers,
    json_object,
    json_value,
)
from rayinfer.servers.prediction.service import PredictionService, PreparedPrediction, predictor_of
from rayinfer.servers.prediction.text_items import TextSettings, named_prompt, text_items

COHERE_EMBED = "/v2/embed"
# Names that checkpoints give the prompts of these uses, the first that a model has is taken.
_PROMPTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "search_query": ("query", "search_query"),
        "search_document": ("document", "passage", "search_document", "corpus"),
        "classification": ("classification", "Classification"),
        "clustering": ("clustering", "Clustering"),
    }
)


class CohereEndpoint:
    """The endpoint over the models of a service."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service

    async def embed(self, request: Request) -> Response:
        """POST /v2/embed: vectors of texts, in Cohere's form."""
        body, prepared = await self._service.prepare(request, partial(self._check, request))
        context = request_context(request)
        response_id = f"embd-{context.identity.name}"

        def encode(outputs: list[PredictionOutput]) -> bytes:
            vectors = [embedding(output, prepared.description, body.output_dimension) for output in outputs]
            kinds = dict.fromkeys(body.embedding_types or ("float",))
            embeddings = {kind: json_list([_WRITERS[kind](vector) for vector in vectors]) for kind in kinds}
            meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": prepared.num_tokens}}
            head = {"id": response_id, "response_type": "embeddings_by_type", "texts": _texts(body), "meta": meta}
            return json_object(head, embeddings=json_object({}, **embeddings))

        return self._service.respond(context, prepared, response_id, encode)

    def _check(self, request: Request, raw: dict[str, Any]) -> tuple[CohereEmbedBody, PreparedPrediction]:
        body = check_schema(CohereEmbedBody, raw)
        check_priority(body.priority)
        if body.images is not None or body.inputs is not None or body.input_type == "image":
            raise NotSupported("Embeddings of images are not supported: send texts.", "images")
        if body.embedding_types is not None and not body.embedding_types:
            raise InvalidParameter("embedding_types must not be empty", "embedding_types")
        texts = _texts(body)
        self._service.limits.check_num_inputs(len(texts), "texts")
        model = find_usable_model(request, self._service.generation.models, body.model, "embed")
        description = predictor_of(model, ("embed",))
        check_dimensions(description, body.output_dimension)
        most = -1 if body.max_tokens is None else min(body.max_tokens, model.max_model_len or body.max_tokens)
        settings = TextSettings(
            truncate_to=None if body.truncate == "NONE" else most,
            truncate_field="max_tokens",
            truncation_side="left" if body.truncate == "START" else "right",
            prompt=_prompt(description, body.input_type),
        )
        items = text_items(texts, model, "embed", "texts", settings)
        longest = max(item.num_tokens for item in items)
        if body.max_tokens is not None and longest > body.max_tokens:
            raise PromptTooLong(f"a text has {longest} tokens, max_tokens is {body.max_tokens}", "texts")
        priority = header_priority(request)
        return body, PreparedPrediction(
            model=model,
            description=description,
            items=items,
            priority=(body.priority or 0) if priority is None else priority,
        )


def _texts(body: CohereEmbedBody) -> list[str]:
    if not isinstance(body.texts, list) or any(not isinstance(text, str) or not text for text in body.texts):
        raise InvalidParameter("texts must be a list of texts, none of them empty", "texts")
    return body.texts


def _prompt(description: PredictorDescription, input_type: str | None) -> str:
    """Return the model's prompt for a use of embeddings; its default one where it has none for that."""
    names = _PROMPTS.get(input_type or "", ())
    return named_prompt(description, next((name for name in names if name in description.prompts), None))


def _eight_bits(vector: FloatArray) -> "npt.NDArray[np.int32]":
    """Round to -127 to 127, the largest number's: angles between vectors stay, lengths do not."""
    largest = float(np.abs(check_finite(vector)).max(initial=0.0))
    return np.asarray(np.rint(vector * (127 / largest if largest else 0.0)), np.int32)


def _signs(vector: FloatArray) -> "npt.NDArray[np.uint8]":
    """Pack a bit for each number, 1 above zero, eight to a byte."""
    return np.packbits(check_finite(vector) > 0)


_WRITERS: Mapping[str, Callable[[FloatArray], bytes]] = MappingProxyType(
    {
        "float": json_numbers,
        "base64": base64_numbers,
        "int8": lambda vector: json_value(_eight_bits(vector).tolist()),
        "uint8": lambda vector: json_value((_eight_bits(vector) + 128).tolist()),
        "ubinary": lambda vector: json_value(_signs(vector).tolist()),
        "binary": lambda vector: json_value((_signs(vector).astype(np.int32) - 128).tolist()),
    }
)
