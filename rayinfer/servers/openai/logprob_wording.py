"""Formats logprobs (OpenAI) and prompt logprobs (vLLM)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.outputs import Logprob, TokenLogprobs
from rayinfer.tokenization.token_offsets import TokenOffsets
from rayinfer.tokenization.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no infinity

Places = Sequence[TokenLogprobs | None]  # None where there are none: before a prompt's first token stands nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class LogprobWording:
    """Formatter of one response's logprobs, with the names of tokens."""

    tokenizer: Tokenizer
    num_top: int  # likely tokens for each place, beside the one that stands there
    as_token_ids: bool = False  # tokens are named token_id:N

    def chat(self, token_ids: Sequence[int], places: Places) -> dict[str, Any]:
        """Write the `logprobs` of a chat's choice."""
        pairs = zip(token_ids, places, strict=True)
        return {
            "content": [self._entry(token_id, place) for token_id, place in pairs if place is not None],
            "refusal": None,
        }

    def prompt(self, places: Places) -> list[dict[str, Any] | None]:
        """Write `prompt_logprobs`, an extension of vLLM's: by token id, null for the first token."""
        return [None if place is None else self._by_id(place) for place in places]

    def by_text(self, place: TokenLogprobs) -> dict[str, float]:
        """Write a place as completions do, the token that stands there first.

        Of several tokens with one text the first has it as its key, the others are named token_id:N.
        """
        by_text: dict[str, float] = {}
        for token_id, logprob in self._told(place):
            text = self.name(token_id)
            by_text[f"token_id:{token_id}" if text in by_text else text] = _finite(logprob)
        return by_text

    def name(self, token_id: int) -> str:
        """Name a token."""
        return f"token_id:{token_id}" if self.as_token_ids else self.tokenizer.token_text(token_id).text

    def _entry(self, token_id: int, place: TokenLogprobs) -> dict[str, Any]:
        likeliest = sorted(self._told(place), key=lambda told: told[1].rank)[: self.num_top]
        return {**self._token(token_id, place[token_id]), "top_logprobs": [self._token(*told) for told in likeliest]}

    def _token(self, token_id: int, logprob: Logprob) -> dict[str, Any]:
        utf8 = self.tokenizer.token_text(token_id).utf8
        return {
            "token": self.name(token_id),
            "logprob": _finite(logprob),
            "bytes": None if utf8 is None else list(utf8),
        }

    def _by_id(self, place: TokenLogprobs) -> dict[str, Any]:
        return {
            str(token_id): {"logprob": _finite(told), "rank": told.rank, "decoded_token": self.name(token_id)}
            for token_id, told in self._told(place)
        }

    def _told(self, place: TokenLogprobs) -> Iterator[tuple[int, Logprob]]:
        """Yield the chosen token and the `num_top` likeliest ones; the engine may have returned more."""
        for index, (token_id, logprob) in enumerate(place.items()):
            if index == 0 or logprob.rank <= self.num_top:
                yield token_id, logprob


class CompletionLogprobs:
    """The parallel lists of one choice of a completion, as they grow: `text_offset` goes on from chunk to chunk."""

    def __init__(self, wording: LogprobWording, offsets: TokenOffsets) -> None:
        self._wording = wording
        self._offsets = offsets

    def word(self, token_ids: Sequence[int], places: Places) -> dict[str, list[Any]]:
        """Write the next tokens."""
        pairs = list(zip(token_ids, places, strict=True))
        return {
            "text_offset": [self._offsets.advance(token_id) for token_id in token_ids],
            "token_logprobs": [None if place is None else _finite(place[token_id]) for token_id, place in pairs],
            "tokens": [self._wording.name(token_id) for token_id in token_ids],
            "top_logprobs": [None if place is None else self._wording.by_text(place) for place in places],
        }


def _finite(logprob: Logprob) -> float:
    return logprob.logprob if logprob.logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
