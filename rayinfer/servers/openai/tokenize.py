"""Tokenizers over HTTP, as vLLM has them: texts and conversations to token ids and back, and what a tokenizer is."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import ModelDescription
from rayinfer.servers.caller import find_usable_model
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.prompt_tokens import PromptLimit, tokenize_prompts
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.prompts import conversation_text, truncation_of
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.schemas import DetokenizeBody, TokenizeChatBody, TokenizePromptBody
from rayinfer.servers.openai.unsupported_fields import refuse_unsupported_fields
from rayinfer.servers.served_model import ServedModel

_TOKENS_AT_ONCE = 8192  # encoded before another thread may run


class TokenizeEndpoints:
    """Paths of tokenizers, over the models in a mapping that may change while we serve."""

    def __init__(self, service: GenerationService, *, trusts_request_chat_template: bool = False) -> None:
        self._service = service
        self._trusts_template = trusts_request_chat_template

    async def tokenize(self, request: Request) -> Response:
        """Turn a text or a conversation into token ids."""
        return json_response(await self._service.prepare(request, partial(self._tokenize_body, request)))

    async def detokenize(self, request: Request) -> Response:
        """Turn token ids into text."""
        return json_response(await self._service.prepare(request, partial(self._detokenize_body, request)))

    async def tokenizer_info(self, request: Request) -> Response:
        """Describe the tokenizer of the model that the query names, or of the only one."""
        model = find_usable_model(request, self._service.models, request.query_params.get("model"))
        tokenizer = model.text_tokenizer
        special = {name: tokenizer.special_tokens.get(name) for name in ("bos_token", "eos_token", "pad_token")}
        info = {
            **special,
            **model.text_tokenizer.special_tokens,
            "tokenizer_class": model.text_tokenizer.tokenizer_class,
            "vocab_size": model.text_tokenizer.vocab_size,
            "model_max_length": model.generator.describe().max_model_len,
            "chat_template": model.chat_template.text,
        }
        return json_response(json.dumps(info).encode())

    def _tokenize_body(self, request: Request, raw: dict[str, Any]) -> bytes:
        """Return the response to a body of /tokenize."""
        if raw.get("messages") is not None:
            if raw.get("prompt") is not None:
                raise InvalidParameter("prompt and messages exclude each other", "prompt")
            body: TokenizeChatBody | TokenizePromptBody = self._chat_body(raw)
        else:
            body = check_schema(TokenizePromptBody, raw)
        model = find_usable_model(request, self._service.models, body.model)
        description = model.generator.describe()
        token_ids = self._token_ids(body, model, description)
        tokenizer = model.text_tokenizer
        pieces = [tokenizer.token_piece(token_id) for token_id in token_ids] if body.return_token_strs else None
        sizes = {"count": len(token_ids), "max_model_len": description.max_model_len}
        lists = (
            b',"tokens":' + _encode(token_ids) + b',"token_strs":' + (b"null" if pieces is None else _encode(pieces))
        )
        return json.dumps(sizes).encode()[:-1] + lists + b"}"

    def _chat_body(self, raw: dict[str, Any]) -> TokenizeChatBody:
        refuse_unsupported_fields(raw, is_chat=True)
        return check_schema(TokenizeChatBody, raw)

    def _token_ids(
        self, body: TokenizeChatBody | TokenizePromptBody, model: ServedModel, description: ModelDescription
    ) -> list[int]:
        if isinstance(body, TokenizeChatBody):
            text = conversation_text(body, model, self._service.limits, trusts_template=self._trusts_template)
            adds_special_tokens = bool(body.add_special_tokens)
        else:
            text, adds_special_tokens = body.prompt, body.add_special_tokens is not False
        longest = self._service.limits.max_repeated_token_ids
        truncation = truncation_of(body, PromptLimit.of(description, "prompt"), None)
        if truncation is not None:
            return model.text_tokenizer.encode(text, add_special_tokens=adds_special_tokens, truncation=truncation)

        def check_length(num_tokens: int) -> None:
            if num_tokens > longest:
                raise InvalidParameter(f"prompt has {num_tokens} tokens, at most {longest} are returned", "prompt")

        check_length(model.text_tokenizer.least_num_tokens(text))
        return model.text_tokenizer.encode(text, add_special_tokens=adds_special_tokens, check_length=check_length)

    def _detokenize_body(self, request: Request, raw: dict[str, Any]) -> bytes:
        body = check_schema(DetokenizeBody, raw)
        model = find_usable_model(request, self._service.models, body.model)
        longest = self._service.limits.max_repeated_token_ids
        if len(body.tokens) > longest:
            raise InvalidParameter(f"tokens must hold at most {longest} token ids, got {len(body.tokens)}", "tokens")
        token_ids: list[int] = []
        if body.tokens:
            vocab_size = model.generator.describe().vocab_size
            limit = PromptLimit(longest, longest, "tokens")
            (token_ids,) = tokenize_prompts([body.tokens], model.tokenizer, vocab_size, limit, add_special_tokens=False)
        text = model.text_tokenizer.decode(token_ids, skip_special_tokens=False)
        return json.dumps({"prompt": text}, ensure_ascii=False).encode(errors="replace")


def _encode(values: Sequence[object]) -> bytes:
    """Encode a list piece by piece: while one is encoded, no other thread runs."""
    starts = range(0, len(values), _TOKENS_AT_ONCE)
    pieces = (json.dumps(values[start : start + _TOKENS_AT_ONCE], ensure_ascii=False)[1:-1] for start in starts)
    return ("[" + ",".join(pieces) + "]").encode(errors="replace")
