"""Entities of a text: token classification as the Hub's pipelines answer it."""

from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.prediction_outputs import output_numbers
from rayinfer.predictions import PredictionInput, PredictionOutput
from rayinfer.servers.generation.prompt_tokens import PromptLimit
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.path_models import find_path_model
from rayinfer.servers.prediction.number_encoding import json_value
from rayinfer.servers.prediction.service import PredictionItem, PreparedPrediction, predictor_of
from rayinfer.servers.tei.endpoints import Checked, TeiEndpoints
from rayinfer.servers.tei.schemas import PipelineParameters, PredictBody
from rayinfer.token_entities import OUTSIDE, Aggregation, Entity, find_entities, scored_tokens


class EntityEndpoint:
    """POST / to a model that classifies tokens."""

    def __init__(self, tei: TeiEndpoints) -> None:
        self._tei = tei

    async def find(self, request: Request) -> Response:
        """POST /: the entities of a text, or a list of them for each of several."""
        return await self._tei.respond(request, partial(self._check, request))

    def _check(self, request: Request, raw: dict[str, Any]) -> Checked:
        body = check_schema(PredictBody, raw)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        if not isinstance(texts, list) or any(not isinstance(text, str) or not text for text in texts):
            raise InvalidParameter("inputs must be a text or a list of texts, none of them empty", "inputs")
        self._tei.limits.check_num_inputs(len(texts), "inputs")
        parameters = body.parameters or PipelineParameters()
        strategy = parameters.aggregation_strategy or "simple"
        ignored = [OUTSIDE] if parameters.ignore_labels is None else parameters.ignore_labels
        if not isinstance(ignored, list) or any(not isinstance(label, str) for label in ignored):
            raise InvalidParameter("ignore_labels must be a list of strings", "parameters.ignore_labels")
        model = find_path_model(request, self._tei.models, "token_classify")
        description = predictor_of(model, ("token_classify",))
        limit = PromptLimit.of(model.generator.describe(), "inputs", generates=False)
        located = [model.tokenizer.locate_tokens(text, check_length=limit.check) for text in texts]
        for tokens in located:
            limit.check(len(tokens))
        task = PredictionInput(task="token_classify")
        items = [PredictionItem([token.token_id for token in tokens], task) for tokens in located]
        tokenizer, labels = model.tokenizer, description.labels

        def encode(outputs: list[PredictionOutput]) -> bytes:
            answers = []
            for text, output in zip(texts, outputs, strict=True):
                tokens = scored_tokens(tokenizer, text, output_numbers(output))
                entities = find_entities(tokens, labels, strategy, tokenizer.join_pieces, ignored)
                answers.append([_as_pipelines_do(entity, strategy) for entity in entities])
            return json_value(answers[0] if isinstance(body.inputs, str) else answers)

        prepared = PreparedPrediction(model=model, description=description, items=items, operation="token_classify")
        return Checked(prepared, encode, sum(map(len, texts)))


def _as_pipelines_do(entity: Entity, strategy: Aggregation) -> dict[str, Any]:
    if strategy == "none":
        head = {"entity": entity.label, "score": entity.score, "index": entity.index}
    else:
        head = {"entity_group": entity.label, "score": entity.score}
    return head | {"word": entity.word, "start": entity.start, "end": entity.end}
