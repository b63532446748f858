"""TEI's information about a model, and its tokenizer."""

import json
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.predictions import PredictorDescription
from rayinfer.servers.error_formats import choose_error_format, tei_error
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.prompt_tokens import PromptLimit, is_integer, tokenize_prompts
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.path_models import find_path_model
from rayinfer.servers.prediction.number_encoding import json_value
from rayinfer.servers.prediction.text_items import named_prompt
from rayinfer.servers.served_model import LIST_TASKS, ServedModel
from rayinfer.servers.tei.schemas import DecodeBody, TeiTokenizeBody


class TeiInformation:
    """Paths that run no model."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def info(self, request: Request, model: ServedModel) -> Response:
        """GET /info of a model that does not generate."""
        choose_error_format(request.scope, tei_error)
        described = model.generator.describe()
        limits = self._service.limits
        fields = {
            "model_id": model.name,
            "model_sha": None,
            "model_dtype": "float32",
            "model_type": {} if described.predictor is None else _model_type(described.predictor),
            "max_concurrent_requests": described.max_num_seqs,
            "max_input_length": described.longest_prompt(generates=False),
            "max_batch_tokens": described.max_num_batched_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": limits.max_inputs,
            "auto_truncate": False,
            "tokenization_workers": 1,
            "version": installed_version("rayinfer"),
            "sha": None,
            "docker_label": None,
        }
        return json_response(json.dumps(fields).encode())

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize with `inputs`: the tokens of each text."""
        choose_error_format(request.scope, tei_error)
        return json_response(await self._service.prepare(request, lambda raw: self._tokenize(request, raw)))

    async def decode(self, request: Request) -> Response:
        """POST /decode: token ids to texts."""
        choose_error_format(request.scope, tei_error)
        return json_response(await self._service.prepare(request, lambda raw: self._decode(request, raw)))

    def _tokenize(self, request: Request, raw: dict[str, Any]) -> bytes:
        body = check_schema(TeiTokenizeBody, raw)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        if not isinstance(texts, list) or any(not isinstance(text, str) or not text for text in texts):
            raise InvalidParameter("inputs must be a text or a list of texts, none of them empty", "inputs")
        self._service.limits.check_num_inputs(len(texts), "inputs")
        model = find_path_model(request, self._service.models, *LIST_TASKS)
        description = model.generator.describe()
        prompt = "" if description.predictor is None else named_prompt(description.predictor, body.prompt_name)
        budget = _Budget(self._service.limits.max_repeated_token_ids)
        return json_value(
            [_tokens(model, prompt + text, body.add_special_tokens is not False, budget) for text in texts]
        )

    def _decode(self, request: Request, raw: dict[str, Any]) -> bytes:
        body = check_schema(DecodeBody, raw)
        ids = [body.ids] if isinstance(body.ids, list) and body.ids and is_integer(body.ids[0]) else body.ids
        if not isinstance(ids, list) or any(not isinstance(each, list) or not each for each in ids):
            raise InvalidParameter("ids must be a list of token ids, or a list of such lists", "ids")
        self._service.limits.check_num_inputs(len(ids), "ids")
        model = find_path_model(request, self._service.models, *LIST_TASKS)
        most = self._service.limits.max_repeated_token_ids
        limit = PromptLimit(most, most, "ids")
        vocab_size = model.generator.describe().vocab_size
        checked = tokenize_prompts(ids, model.text_tokenizer, vocab_size, limit, add_special_tokens=False)
        skips = body.skip_special_tokens is not False
        tokenizer = model.text_tokenizer
        return json_value([tokenizer.decode(each, skip_special_tokens=skips) for each in checked])


class _Budget:
    """Tokens that a response may still have."""

    def __init__(self, num_tokens: int) -> None:
        self._most = self._left = num_tokens

    def take(self, num_tokens: int) -> None:
        """Take some; raises InvalidParameter where there are not as many."""
        self._left -= num_tokens
        if self._left < 0:
            raise InvalidParameter(f"inputs have more than {self._most} tokens, as many as are returned", "inputs")


def _tokens(model: ServedModel, text: str, adds_special_tokens: bool, budget: _Budget) -> list[dict[str, Any]]:
    tokenizer = model.text_tokenizer
    located = tokenizer.locate_tokens(text, add_special_tokens=adds_special_tokens)
    budget.take(len(located))
    tokens: list[dict[str, Any]] = []
    for token in located:
        is_special = token.token_id in tokenizer.special_ids
        piece = tokenizer.token_piece(token.token_id) if is_special else text[token.start : token.stop]
        place = (None, None) if is_special else (token.start, token.stop)
        tokens.append({"id": token.token_id, "text": piece, "special": is_special, "start": place[0], "stop": place[1]})
    return tokens


def _model_type(description: PredictorDescription) -> dict[str, Any]:
    if "embed" in description.tasks:
        return {"embedding": {"pooling": description.pooling or "mean"}}
    labels = {
        "id2label": {str(index): label for index, label in enumerate(description.labels)},
        "label2id": {label: index for index, label in enumerate(description.labels)},
    }
    return {"reranker" if "score" in description.tasks else "classifier": labels}
