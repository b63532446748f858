"""Endpoints that run models: infer, generate, generate_stream, and v1's predict and explain."""

import asyncio
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from rayinfer.errors import TaskNotServed
from rayinfer.servers.caller import caller_of, request_context
from rayinfer.servers.error_formats import choose_error_format, kserve_error
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.responses import StreamedResponse, WholeResponse
from rayinfer.servers.kserve.inference import Inference, InferenceService
from rayinfer.servers.kserve.prediction_tensors import predictor_description
from rayinfer.servers.kserve.repository import AnyModel
from rayinfer.servers.kserve.rest.awaited_response import AwaitedResponse
from rayinfer.servers.kserve.rest.infer_body import infer_response, read_infer_body, read_json_body
from rayinfer.servers.kserve.rest.infer_encoding import encode_result, is_slow_to_encode
from rayinfer.servers.kserve.rest.infer_json import BinaryOutputs, read_infer_request
from rayinfer.servers.kserve.rest.predict_v1 import predictions, read_predict_body
from rayinfer.servers.kserve.text_outputs import GenerateEvents, TextCollector
from rayinfer.servers.kserve.text_request import TextRequest, read_generate_body
from rayinfer.servers.prediction.body_limits import BodyLimits
from rayinfer.servers.served_model import ServedModel


class InferEndpoints:
    """The paths that run models."""

    def __init__(self, service: InferenceService, body_limits: BodyLimits) -> None:
        self._service = service
        self._body_limits = body_limits

    async def infer(self, request: Request, name: str, version: str = "") -> Response:
        """POST /v2/models/{name}/infer: run a model on tensors."""
        model = self._service.repository.find_ready(caller_of(request), name, version)
        context = request_context(request)
        body = await read_infer_body(request, self._body_limits.of(request.scope))
        checked = await self._service.generation.prepare_json(
            body.header, partial(self._check_infer, model, body.binary), num_more_bytes=len(body.binary)
        )

        async def respond() -> Response:
            result = await self._service.infer(context, checked.inference)
            started_ns = time.monotonic_ns()
            if is_slow_to_encode(result):
                encoded = await asyncio.to_thread(encode_result, result, checked.binary_outputs)
            else:
                encoded = encode_result(result, checked.binary_outputs)
            self._service.statistics.of(result.model).compute_output.add(time.monotonic_ns() - started_ns)
            accept_encoding = request.headers.get("accept-encoding", "")
            return await infer_response(encoded.header, encoded.binary, accept_encoding)

        return AwaitedResponse(respond)

    async def generate(self, request: Request, name: str, version: str = "") -> Response:
        """POST /v2/models/{name}/generate: continue a text."""
        text = await self._read_generate(request, name, version, streams=False)
        collector = TextCollector(text)
        outputs = self._service.outputs(request_context(request), text)
        return WholeResponse(outputs, collector, collector.body)

    async def generate_stream(self, request: Request, name: str, version: str = "") -> Response:
        """POST /v2/models/{name}/generate_stream: continue a text as events."""
        text = await self._read_generate(request, name, version, streams=True)
        return StreamedResponse(self._service.outputs(request_context(request), text), GenerateEvents(text))

    async def predict(self, request: Request, name: str) -> Response:
        """POST /v1/models/{name}:predict: predictions, in KServe v1's form."""
        choose_error_format(request.scope, kserve_error)
        model = self._service.repository.find_ready(caller_of(request), name)
        context = request_context(request)
        raw = await read_json_body(request, self._body_limits.of(request.scope))
        inference = await self._service.generation.prepare_json(raw, partial(read_predict_body, self._service, model))

        async def respond() -> Response:
            result = await self._service.infer(context, inference)
            body = {"predictions": predictions(result)}
            encode = partial(json.dumps, body, ensure_ascii=False)
            text = await asyncio.to_thread(encode) if is_slow_to_encode(result) else encode()
            return json_response(text.encode(errors="replace"))

        return AwaitedResponse(respond)

    async def explain(self, request: Request, name: str) -> Response:
        """POST /v1/models/{name}:explain, which no model here does."""
        choose_error_format(request.scope, kserve_error)
        self._service.repository.find(caller_of(request), name)
        raise TaskNotServed(f"The model {name!r:.200} has no explainer.", "model")

    def _check_infer(self, model: AnyModel, binary: memoryview, body: Mapping[str, Any]) -> "_CheckedInfer":
        started_ns = time.monotonic_ns()
        read = read_infer_request(body, binary)
        return _CheckedInfer(self._service.check(model, read.request, started_ns), read.binary_outputs)

    async def _read_generate(self, request: Request, name: str, version: str, *, streams: bool) -> TextRequest:
        model = self._service.repository.find_ready(caller_of(request), name, version)
        if not isinstance(model, ServedModel) or predictor_description(model) is not None:
            raise TaskNotServed(f"The model {name!r:.200} generates no text; use infer.", "model")
        raw = await read_json_body(request, self._body_limits.of(request.scope))
        generation = self._service.generation
        read = partial(read_generate_body, model, generation.limits, streams=streams)
        return await generation.prepare_json(raw, read)


class _CheckedInfer:
    """A checked inference and the form of its response."""

    __slots__ = ("binary_outputs", "inference")

    def __init__(self, inference: Inference, binary_outputs: BinaryOutputs) -> None:
        self.inference = inference
        self.binary_outputs = binary_outputs
