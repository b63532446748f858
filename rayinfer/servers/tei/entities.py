"""Entities of a text: token classification as the Hub's pipelines answer it."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter, NotSupported
from rayinfer.prediction_outputs import LabelScore, token_label_scores
from rayinfer.predictions import PredictionInput, PredictionOutput
from rayinfer.servers.generation.prompt_tokens import PromptLimit
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.path_models import find_path_model
from rayinfer.servers.prediction.number_encoding import json_value
from rayinfer.servers.prediction.service import PredictionItem, PreparedPrediction, predictor_of
from rayinfer.servers.tei.endpoints import Checked, TeiEndpoints
from rayinfer.servers.tei.schemas import PipelineParameters, PredictBody
from rayinfer.tokenization.tokenizer import LocatedToken

OUTSIDE = "O"  # of no entity


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
        if strategy not in ("none", "simple"):
            raise NotSupported("aggregation_strategy must be none or simple", "parameters.aggregation_strategy")
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
        special = model.tokenizer.special_ids

        def encode(outputs: list[PredictionOutput]) -> bytes:
            answers = []
            for text, tokens, output in zip(texts, located, outputs, strict=True):
                found = _tagged(text, tokens, token_label_scores(output, description), special)
                entities = found if strategy == "none" else grouped(found, text)
                name = "entity" if strategy == "none" else "entity_group"
                answers.append([entity for entity in entities if entity[name] not in ignored])
            return json_value(answers[0] if isinstance(body.inputs, str) else answers)

        prepared = PreparedPrediction(model=model, description=description, items=items, operation="token_classify")
        return Checked(prepared, encode, sum(map(len, texts)))


def _tagged(
    text: str, tokens: Sequence[LocatedToken], scores: Sequence[LabelScore], special_ids: Collection[int]
) -> list[dict[str, Any]]:
    """Return each token but the special ones with its label."""
    return [
        {
            "entity": label,
            "score": score,
            "index": index,
            "word": text[token.start : token.stop],
            "start": token.start,
            "end": token.stop,
        }
        for index, (token, (label, score)) in enumerate(zip(tokens, scores, strict=True))
        if token.token_id not in special_ids
    ]


def grouped(entities: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Join neighbors of one label, as transformers' strategy `simple`: `B-` begins an entity, its score is the mean."""
    groups: list[list[dict[str, Any]]] = []
    for entity in entities:
        begins, label = _parts(entity["entity"])
        if groups and not begins and _parts(groups[-1][-1]["entity"])[1] == label:
            groups[-1].append(entity)
        else:
            groups.append([entity])
    return [
        {
            "entity_group": _parts(group[0]["entity"])[1],
            "score": sum(entity["score"] for entity in group) / len(group),
            "word": text[group[0]["start"] : group[-1]["end"]].strip(),
            "start": group[0]["start"],
            "end": group[-1]["end"],
        }
        for group in groups
    ]


def _parts(label: str) -> tuple[bool, str]:
    """Return whether a label begins an entity, and its name without B- or I-."""
    if label[:2] in ("B-", "I-"):
        return label[0] == "B", label[2:]
    return False, label
