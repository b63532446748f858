"""Endpoints of TEI's paths."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.prediction_outputs import check_dimensions, embedding, label_scores
from rayinfer.predictions import Activation, PredictionOutput, PredictionTask
from rayinfer.servers.caller import request_context
from rayinfer.servers.error_formats import choose_error_format, tei_error
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.path_models import find_path_model
from rayinfer.servers.prediction.number_encoding import json_list, json_numbers, json_value
from rayinfer.servers.prediction.pair_scores import PairScores, prepare_pairs
from rayinfer.servers.prediction.service import PredictionItem, PredictionService, PreparedPrediction, predictor_of
from rayinfer.servers.prediction.text_items import named_prompt, pair_items, split_inputs, text_items
from rayinfer.servers.tei.schemas import (
    EmbedBody,
    PipelineParameters,
    PredictBody,
    PredictInputs,
    SimilarityBody,
    SimilarityParameters,
    TeiRerankBody,
)
from rayinfer.servers.tei.timings import Timings

Encode = Callable[[list[PredictionOutput]], bytes]


class Checked(NamedTuple):
    """A checked request, and the encoding of its outputs."""

    prepared: PreparedPrediction
    encode: Encode
    num_chars: int


class TeiEndpoints:
    """TEI's paths over the models in a mapping that may change while we serve."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service
        self.models = service.generation.models
        self.limits = service.limits

    async def embed(self, request: Request) -> Response:
        """POST /embed: always a list of embeddings."""
        return await self.respond(request, partial(self._embed, request, "embed"))

    async def embed_all(self, request: Request) -> Response:
        """POST /embed_all: an embedding for each token, before any normalization."""
        return await self.respond(request, partial(self._embed, request, "token_embed"))

    async def rerank(self, request: Request) -> Response:
        """POST /rerank with `texts`."""
        return await self.respond(request, partial(self._rerank, request))

    async def predict(self, request: Request) -> Response:
        """POST /predict: all labels of a text or a pair, best first; of a batch a list of such lists."""
        return await self.respond(request, partial(self._predict, request))

    async def classify_at_root(self, request: Request) -> Response:
        """POST / to a classifier: a list for each input, also of a single one, as the Hub's pipelines answer."""
        return await self.respond(request, partial(self._predict, request, is_root=True))

    async def similarity(self, request: Request) -> Response:
        """POST /similarity: the similarity of each sentence to the first."""
        return await self.respond(request, partial(self._similarity, request))

    async def respond(self, request: Request, check: Callable[[dict[str, Any]], Checked]) -> Response:
        """Check a body and answer with the outputs that it asks for."""
        choose_error_format(request.scope, tei_error)
        context = request_context(request)
        prepared, encode, num_chars = await self._service.prepare(request, check)
        response_id = f"tei-{context.identity.name}"
        timings = Timings(context.identity.received_s)

        def headers() -> dict[str, str]:
            return timings.headers(
                num_chars=num_chars,
                num_tokens=prepared.num_tokens,
                dispatched_s=self._service.generation.dispatched_s(context, response_id),
            )

        return self._service.respond(context, prepared, response_id, encode, headers)

    def _embed(self, request: Request, task: PredictionTask, raw: dict[str, Any]) -> Checked:
        body = check_schema(EmbedBody, raw)
        model = find_path_model(request, self.models, task)
        description = predictor_of(model, (task,))
        check_dimensions(description, body.dimensions)
        inputs = split_inputs(body.inputs, self.limits, "inputs")
        settings = body.text_settings(named_prompt(description, body.prompt_name))
        items = text_items(inputs, model, task, "inputs", settings)
        normalize = task == "embed" and body.normalize is not False

        def encode(outputs: list[PredictionOutput]) -> bytes:
            vectors = (embedding(output, description, body.dimensions, normalize) for output in outputs)
            return json_list([json_numbers(vector) for vector in vectors])

        return Checked(
            PreparedPrediction(model=model, description=description, items=items), encode, _num_chars(inputs)
        )

    def _rerank(self, request: Request, raw: dict[str, Any]) -> Checked:
        body = check_schema(TeiRerankBody, raw)
        if not body.query:
            raise InvalidParameter("query must not be empty", "query")
        self.limits.check_num_inputs(len(body.texts), "texts")
        model = find_path_model(request, self.models, "score", "embed")
        pairs = prepare_pairs(
            model,
            [(body.query, text) for text in body.texts],
            "texts",
            body.text_settings(),
            is_raw=bool(body.raw_scores),
        )

        def encode(outputs: list[PredictionOutput]) -> bytes:
            ranks: list[dict[str, Any]] = []
            for index, score in pairs.ranked(outputs):
                text = {"text": body.texts[index]} if body.return_text else {}
                ranks.append({"index": index, **text, "score": score})
            return json_value(ranks)

        return Checked(pairs.prepared, encode, len(body.query) + _num_chars(body.texts))

    def _predict(self, request: Request, raw: dict[str, Any], *, is_root: bool = False) -> Checked:
        body = check_schema(PredictBody, raw)
        if is_root and isinstance(body.inputs, list) and all(isinstance(each, str) for each in body.inputs):
            body.inputs = [[text] for text in body.inputs]  # a pipeline's list of texts
        inputs = PredictInputs(body.inputs)
        self.limits.check_num_inputs(len(inputs.sequences), "inputs")
        model = find_path_model(request, self.models, "classify")
        description = predictor_of(model, ("classify",))
        parameters = body.parameters or PipelineParameters()
        activation: Activation | None = "none" if body.raw_scores else parameters.function_to_apply
        if parameters.top_k is not None and parameters.top_k < 1:
            raise InvalidParameter(f"top_k must be a whole number above 0, got {parameters.top_k}", "parameters.top_k")
        settings = body.text_settings()
        items: list[PredictionItem] = []
        for sequence in inputs.sequences:
            if len(sequence) == 2:
                items += pair_items([(sequence[0], sequence[1])], model, "classify", "inputs", settings)
            else:
                items += text_items(sequence, model, "classify", "inputs", settings)

        def encode(outputs: list[PredictionOutput]) -> bytes:
            answers = [
                [
                    {"label": label, "score": score}
                    for label, score in label_scores(output, description, activation, parameters.top_k)
                ]
                for output in outputs
            ]
            return json_value(answers if inputs.is_batch or is_root else answers[0])

        prepared = PreparedPrediction(model=model, description=description, items=items, operation="classify")
        return Checked(prepared, encode, sum(map(_num_chars, inputs.sequences)))

    def _similarity(self, request: Request, raw: dict[str, Any]) -> Checked:
        body = check_schema(SimilarityBody, raw)
        parameters = body.parameters or SimilarityParameters()
        source, sentences = body.inputs.source_sentence, body.inputs.sentences
        self.limits.check_num_inputs(len(sentences), "inputs.sentences")
        if not source or not all(sentences):
            raise InvalidParameter("inputs must not hold an empty sentence", "inputs")
        pairs: PairScores = prepare_pairs(
            find_path_model(request, self.models, "embed"),
            [(source, sentence) for sentence in sentences],
            "inputs",
            parameters.text_settings(),
            prompt_name=parameters.prompt_name,
        )
        return Checked(
            pairs.prepared, lambda outputs: json_value(pairs.read(outputs)), len(source) + _num_chars(sentences)
        )


def _num_chars(inputs: Sequence[str | list[Any]]) -> int:
    return sum(len(each) for each in inputs if isinstance(each, str))
