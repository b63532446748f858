"""Tokens as TGI writes them, with their texts and log probabilities."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from rayinfer.outputs import CompletionOutput, Logprob, TokenLogprobs
from rayinfer.tokenization.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no infinity

FINISH_REASONS = {"length": "length", "stop": "eos_token"}


def finish_reason(completion_reason: str | None, stop_reason: int | str | None) -> str:
    """Name the end of a choice in TGI's words."""
    return "stop_sequence" if isinstance(stop_reason, str) else FINISH_REASONS[completion_reason or "stop"]


def output_tokens(tokenizer: Tokenizer, output: CompletionOutput) -> list[dict[str, Any]]:
    """Format an output's tokens; those that are not special have the output's text between them.

    Clients leave out special tokens when they put texts together. So one that brings text, which was held back before
    it, is not marked as special.
    """
    texts = _token_texts(tokenizer, output)
    tokens: list[dict[str, Any]] = []
    for index, (token_id, text) in enumerate(zip(output.token_ids, texts, strict=True)):
        is_special = token_id in tokenizer.special_ids and not text
        tokens.append(
            {
                "id": token_id,
                "text": tokenizer.token_text(token_id).text if is_special else text,
                "logprob": None if output.logprobs is None else _finite(output.logprobs[index][token_id]),
                "special": is_special,
            }
        )
    return tokens


def top_tokens(tokenizer: Tokenizer, position: TokenLogprobs, num_top: int) -> list[dict[str, Any]]:
    """Format the likeliest tokens of a position, the best first."""
    likeliest = sorted(position.items(), key=lambda item: item[1].logprob, reverse=True)
    return [_token(tokenizer, *item) for item in islice(likeliest, num_top)]


def prefill_tokens(
    tokenizer: Tokenizer, token_ids: Sequence[int], positions: Sequence[TokenLogprobs | None]
) -> list[dict[str, Any]]:
    """Format a prompt's tokens; the first one has no log probability."""
    return [
        {
            "id": token_id,
            "text": tokenizer.token_text(token_id).text,
            "logprob": None if position is None else _finite(position[token_id]),
        }
        for token_id, position in zip(token_ids, positions, strict=True)
    ]


def _token(tokenizer: Tokenizer, token_id: int, logprob: Logprob) -> dict[str, Any]:
    return {
        "id": token_id,
        "text": tokenizer.token_text(token_id).text,
        "logprob": _finite(logprob),
        "special": token_id in tokenizer.special_ids,
    }


def _token_texts(tokenizer: Tokenizer, output: CompletionOutput) -> list[str]:
    """Divide an output's text among its tokens."""
    if len(output.token_ids) <= 1:
        return [output.text] * len(output.token_ids)
    texts = ["" if token in tokenizer.special_ids else tokenizer.token_text(token).text for token in output.token_ids]
    if "".join(texts) == output.text:
        return texts
    plain = [index for index, token in enumerate(output.token_ids) if token not in tokenizer.special_ids]
    bearer = plain[-1] if plain else len(output.token_ids) - 1
    return [output.text if index == bearer else "" for index in range(len(output.token_ids))]


def _finite(logprob: Logprob) -> float:
    return max(logprob.logprob, LOWEST_LOGPROB)
