"""`POST /v1/images/classify`: images as they are, in forms, or in JSON, to labels with scores."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from rayinfer.errors import InvalidParameter, UnsupportedContentType
from rayinfer.images.headers import is_image
from rayinfer.images.inputs import RemoteImages, decode_image_text
from rayinfer.prediction_outputs import label_scores
from rayinfer.predictions import PredictionOutput
from rayinfer.servers.caller import find_usable_model, request_context
from rayinfer.servers.documented_routes import add_body_schemas, add_route
from rayinfer.servers.error_formats import choose_error_format, tei_error
from rayinfer.servers.openai.priority_header import header_priority
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.schemas import Integer
from rayinfer.servers.openapi import GENERATION_ERRORS, ranged
from rayinfer.servers.path_models import find_path_model
from rayinfer.servers.pooling.response_head import response_head, usage
from rayinfer.servers.prediction.image_items import image_items
from rayinfer.servers.prediction.multipart import Part, read_parts
from rayinfer.servers.prediction.number_encoding import json_object, json_value
from rayinfer.servers.prediction.service import PredictionService, PreparedPrediction, predictor_of
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.tei.schemas import PipelineParameters, PredictBody

IMAGE_PATH = "/v1/images/classify"
OCTET_STREAM = "application/octet-stream"
_UNNAMED_TYPES = ("", "application/x-www-form-urlencoded", "binary/octet-stream")  # curl's, without one of its user's
_CONTENT_TYPES = (
    f"Content-Type must be image/jpeg, image/png, image/webp or {OCTET_STREAM} for an image as the body, "
    "multipart/form-data for a form, or application/json"
)
DEFAULT_TOP_K = 5
_IMAGE = {"type": "string", "minLength": 1, "description": "data: URL or base64"}


class ImagesBody(BaseModel):
    """POST /v1/images/classify as JSON."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    image: Annotated[str | None, WithJsonSchema({"anyOf": [_IMAGE, {"type": "null"}]})] = None
    images: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "array", "minItems": 1, "items": _IMAGE}, {"type": "null"}]})
    ] = None
    model: str | None = None
    top_k: Annotated[Integer | None, ranged("integer", minimum=1)] = None


class _Images:
    """Images of a request with the settings of their classification."""

    def __init__(self, images: Sequence[bytes], model: str | None, top_k: int | None) -> None:
        if top_k is not None and top_k < 1:
            raise InvalidParameter(f"top_k must be a whole number above 0, got {top_k}", "top_k")
        self.images = images
        self.model = model
        self.top_k = DEFAULT_TOP_K if top_k is None else top_k


class ImageEndpoint:
    """The endpoint over the models of a service."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service

    async def classify(self, request: Request) -> Response:
        """POST /v1/images/classify: labels of images and their probabilities."""
        asked = await self._read(request)
        model = find_usable_model(request, self._service.generation.models, asked.model, "classify_images")
        description = predictor_of(model, ("classify",))
        prepared = PreparedPrediction(
            model=model,
            description=description,
            items=image_items(asked.images, description, self._service.limits, "images"),
            priority=header_priority(request) or 0,
            operation="classify",
        )
        context = request_context(request)
        head = response_head("images", context.identity.name, model.name)

        def encode(outputs: list[PredictionOutput]) -> bytes:
            data = [
                {
                    "index": index,
                    "predictions": [each._asdict() for each in label_scores(output, description, None, top)],
                }
                for index, output in enumerate(outputs)
            ]
            return json_object(head | {"data": data, "usage": usage(prepared.num_tokens)})

        top = asked.top_k
        return self._service.respond(context, prepared, head["id"], encode)

    async def classify_at_root(self, request: Request) -> Response:
        """POST / to a classifier of images, as the Hub's pipelines: an image, or its base64 in `inputs`."""
        choose_error_format(request.scope, tei_error)
        if await has_raw_image(request):
            image, parameters = await request.body(), PipelineParameters()
        else:
            image, parameters = await self._service.prepare(request, _of_pipeline)
        model = find_path_model(request, self._service.generation.models, "classify_images")
        if (top := parameters.top_k) is not None and top < 1:
            raise InvalidParameter(f"top_k must be a whole number above 0, got {top}", "parameters.top_k")
        description = predictor_of(model, ("classify",))
        prepared = PreparedPrediction(
            model=model,
            description=description,
            items=image_items([image], description, self._service.limits, "inputs"),
            priority=header_priority(request) or 0,
            operation="classify",
        )

        def encode(outputs: list[PredictionOutput]) -> bytes:
            scores = label_scores(outputs[0], description, parameters.function_to_apply, top or DEFAULT_TOP_K)
            return json_value([each._asdict() for each in scores])

        context = request_context(request)
        return self._service.respond(context, prepared, f"images-{context.identity.name}", encode)

    async def _read(self, request: Request) -> _Images:
        content_type, kind = request.headers.get("content-type", ""), _content_type(request)
        if await has_raw_image(request):
            query = request.query_params
            return _Images([await request.body()], query.get("model"), _number(query.get("top_k")))
        if kind == "multipart/form-data":
            return _of_form(read_parts(await request.body(), content_type))
        if kind and kind != "application/json" and not kind.endswith("+json"):
            raise UnsupportedContentType(f"{_CONTENT_TYPES}, got {kind!r:.80}.")
        if not kind and not (await request.body()).lstrip().startswith(b"{"):
            raise InvalidParameter("the body must be an image, JPEG, PNG or WebP, a form or a JSON object", "image")
        return await self._service.prepare(request, partial(_of_json, self._service.limits))


async def has_raw_image(request: Request) -> bool:
    """Return whether a body is an image itself: by its type, or, where that names none, by its first bytes."""
    kind = _content_type(request)
    if kind.startswith("image/") or kind == OCTET_STREAM:
        return True
    return kind in _UNNAMED_TYPES and is_image(await request.body())


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _of_pipeline(raw: dict[str, Any]) -> tuple[bytes, PipelineParameters]:
    body = check_schema(PredictBody, raw)
    return decode_image_text(body.inputs, "inputs"), body.parameters or PipelineParameters()


def _of_json(limits: RequestLimits, raw: dict[str, Any]) -> _Images:
    body = check_schema(ImagesBody, raw)
    if (body.image is None) == (body.images is None):
        raise InvalidParameter("the body must have one of image and images", "images")
    texts = [body.image] if body.images is None else body.images
    if not isinstance(texts, list) or not 1 <= len(texts) <= limits.max_images:
        raise InvalidParameter(f"images must be a list of 1 to {limits.max_images}", "images")
    RemoteImages.check(texts, "images")
    images = [decode_image_text(text, f"images.{index}") for index, text in enumerate(texts)]
    return _Images(images, body.model, body.top_k)


def _of_form(parts: Sequence[Part]) -> _Images:
    fields = {part.name: part.content.decode(errors="replace") for part in parts if part.name in ("model", "top_k")}
    images = [part.content for part in parts if part.name.removesuffix("[]") in ("image", "images", "file", "files")]
    return _Images(images, fields.get("model"), _number(fields.get("top_k")))


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidParameter(f"top_k must be a whole number, got {text!r:.40}", "top_k")
    return int(text)


def add_image_routes(app: FastAPI, service: PredictionService) -> None:
    """Add the path to an application."""
    add_route(
        app,
        "POST",
        IMAGE_PATH,
        ImageEndpoint(service).classify,
        errors=(*GENERATION_ERRORS, 422),
        error_schema="ErrorResponse",
        aliases=[IMAGE_PATH + "/"],
        bodies=[ImagesBody],
    )
    add_body_schemas(app, [ImagesBody])
