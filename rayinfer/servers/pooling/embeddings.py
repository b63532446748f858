"""Embeddings, classification and pooling: one answer for each input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.prediction_outputs import activated, check_dimensions, embedding, output_numbers
from rayinfer.predictions import Activation, PredictionOutput, PredictionTask
from rayinfer.servers.caller import find_usable_model, request_context
from rayinfer.servers.openai.priority_header import header_priority
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.pooling.number_types import FLOAT32, NumberType, numbers_with_metadata
from rayinfer.servers.pooling.response_head import response_head, usage
from rayinfer.servers.pooling.schemas import ClassifyBody, EmbeddingsBody, InputBody, PoolingBody, VectorsBody
from rayinfer.servers.prediction.number_encoding import (
    FloatArray,
    check_finite,
    json_list,
    json_numbers,
    json_object,
)
from rayinfer.servers.prediction.service import PredictionService, PreparedPrediction, first_task, predictor_of
from rayinfer.servers.prediction.text_items import named_prompt, split_inputs, text_items

_POOLING_TASKS: tuple[PredictionTask, ...] = ("embed", "classify", "token_embed", "token_classify")
OCTET_STREAM = "application/octet-stream"
_OPERATIONS = {"embed": "embeddings", "token_embed": "embeddings"}

_Read = Callable[[PredictionOutput], FloatArray]


@dataclass(frozen=True, slots=True)
class _Checked:
    """A checked request and the reading of each of its outputs."""

    prepared: PreparedPrediction
    request_id: str | None
    read: _Read
    encoding_format: str = "float"
    number_type: NumberType = FLOAT32


class InputEndpoints:
    """Paths whose bodies have `input`."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service

    async def create_embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings: vectors of texts."""
        checked = await self._service.prepare(request, partial(self._embeddings, request))
        return self._respond(request, checked, "embd", partial(_vectors, "embedding", "embedding"))

    async def classify(self, request: Request) -> Response:
        """POST /classify: the probabilities of all labels, and the likeliest one."""
        checked = await self._service.prepare(request, partial(self._classification, request))
        return self._respond(request, checked, "classify", _classes)

    async def pool(self, request: Request) -> Response:
        """POST /pooling: whatever numbers a model computes of texts or of their tokens."""
        checked = await self._service.prepare(request, partial(self._pooling, request))
        return self._respond(request, checked, "pool", partial(_vectors, "pooling", "data"))

    def _embeddings(self, request: Request, raw: dict[str, Any]) -> _Checked:
        return self._check(request, check_schema(EmbeddingsBody, raw), ("embed",))

    def _classification(self, request: Request, raw: dict[str, Any]) -> _Checked:
        return self._check(request, check_schema(ClassifyBody, raw), ("classify",))

    def _pooling(self, request: Request, raw: dict[str, Any]) -> _Checked:
        body = check_schema(PoolingBody, raw)
        return self._check(request, body, _POOLING_TASKS if body.task is None else (body.task,))

    def _check(self, request: Request, body: InputBody, tasks: Sequence[PredictionTask]) -> _Checked:
        model = find_usable_model(request, self._service.generation.models, body.model, *tasks)
        description = predictor_of(model, tasks)
        task = first_task(description, tasks)
        body.check_ranges()
        prompt = ""
        if isinstance(body, VectorsBody):
            check_dimensions(description, body.dimensions)
            prompt = named_prompt(description, body.prompt_name)
        inputs = split_inputs(body.input, self._service.limits, "input")
        settings = body.text_settings(prompt, add_special_tokens=body.add_special_tokens)
        priority = header_priority(request)
        prepared = PreparedPrediction(
            model=model,
            description=description,
            items=text_items(inputs, model, task, "input", settings),
            priority=(body.priority or 0) if priority is None else priority,
            cache_salt=body.cache_salt or "",
            operation=_OPERATIONS.get(task, task),
        )
        if isinstance(body, VectorsBody) and task in _OPERATIONS:
            normalize = body.normalize if body.use_activation is None else body.use_activation
            read: _Read = partial(embedding, description=description, dimensions=body.dimensions, normalize=normalize)
        else:
            read = partial(_activated, activation="none" if body.use_activation is False else description.activation)
        if not isinstance(body, VectorsBody):
            return _Checked(prepared, body.request_id, read)
        return _Checked(prepared, body.request_id, read, body.encoding_format or "float", body.number_type)

    def _respond(
        self,
        request: Request,
        checked: _Checked,
        kind: str,
        encode_data: Callable[[_Checked, Sequence[PredictionOutput]], bytes],
    ) -> Response:
        context = request_context(request)
        if checked.request_id:
            context.identity.rename(checked.request_id)
        prepared = checked.prepared
        head = response_head(kind, context.identity.name, prepared.model.name)
        if checked.encoding_format in ("bytes", "bytes_only"):
            return self._service.answer(context, prepared, head["id"], partial(_as_bytes, checked, head))

        def encode(outputs: list[PredictionOutput]) -> bytes:
            return json_object(head | {"usage": usage(prepared.num_tokens)}, data=encode_data(checked, outputs))

        return self._service.respond(context, prepared, head["id"], encode)


def _activated(output: PredictionOutput, activation: Activation) -> FloatArray:
    return activated(output_numbers(output), activation)


def _vectors(kind: str, member: str, checked: _Checked, outputs: Sequence[PredictionOutput]) -> bytes:
    write = checked.number_type.base64_json if checked.encoding_format == "base64" else json_numbers
    data = [
        json_object({"object": kind, "index": index}, **{member: write(checked.read(output))})
        for index, output in enumerate(outputs)
    ]
    return json_list(data)


def _as_bytes(checked: _Checked, head: dict[str, Any], outputs: Sequence[PredictionOutput]) -> Response:
    arrays = [checked.read(output) for output in outputs]
    if checked.encoding_format == "bytes_only":
        return Response(b"".join(map(checked.number_type.encode, arrays)), media_type=OCTET_STREAM)
    described = head | {"usage": usage(checked.prepared.num_tokens)}
    content, headers = numbers_with_metadata(arrays, checked.number_type, described)
    return Response(content, headers=headers, media_type=OCTET_STREAM)


def _classes(checked: _Checked, outputs: Sequence[PredictionOutput]) -> bytes:
    labels = checked.prepared.description.labels
    data = []
    for index, output in enumerate(outputs):
        numbers = check_finite(checked.read(output))
        label = labels[int(numbers.argmax())]
        fields = {"index": index, "label": label, "num_classes": len(labels)}
        data.append(json_object(fields, probs=json_numbers(numbers)))
    return json_list(data)
