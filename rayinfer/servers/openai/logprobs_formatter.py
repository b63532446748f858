"""Formats logprobs (OpenAI) and prompt logprobs (vLLM)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.outputs import Logprob, TokenLogprobs
from rayinfer.tokenization.token_offsets import TokenOffsets
from rayinfer.tokenization.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no infinity

PositionLogprobs = Sequence[TokenLogprobs | None]  # None for a prompt's first token


@dataclass(frozen=True, kw_only=True, slots=True)
class LogprobsFormatter:
    """Formatter of one response's logprobs, with the names of tokens."""

    tokenizer: Tokenizer
    num_top: int  # top tokens of each position, beside the chosen one; negative: the whole vocabulary
    listed: tuple[int, ...] = ()  # tokens that each position has as well
    as_token_ids: bool = False  # tokens are named token_id:N

    def chat(self, token_ids: Sequence[int], positions: PositionLogprobs) -> dict[str, Any]:
        """Format the `logprobs` of a chat's choice."""
        pairs = zip(token_ids, positions, strict=True)
        return {
            "content": [self._entry(token_id, position) for token_id, position in pairs if position is not None],
            "refusal": None,
        }

    def prompt(self, positions: PositionLogprobs) -> list[dict[str, Any] | None]:
        """Format `prompt_logprobs`, an extension of vLLM's: by token id, null for the first token."""
        return [None if position is None else self._by_id(position) for position in positions]

    def by_text(self, position: TokenLogprobs) -> dict[str, float]:
        """Format a position as completions do, the chosen token first.

        Of several tokens with one text the first has it as its key, the others are named token_id:N.
        """
        by_text: dict[str, float] = {}
        for token_id, logprob in self._top(position):
            text = self.name(token_id)
            by_text[f"token_id:{token_id}" if text in by_text else text] = _finite(logprob)
        return by_text

    def name(self, token_id: int) -> str:
        """Name a token."""
        return f"token_id:{token_id}" if self.as_token_ids else self.tokenizer.token_text(token_id).text

    def _entry(self, token_id: int, position: TokenLogprobs) -> dict[str, Any]:
        ranked = sorted((logprob.rank, each) for each, logprob in position.items() if logprob.rank is not None)
        best = [each for rank, each in ranked if rank <= self.num_top]
        listed = [each for each in self.listed if each not in best]
        return {
            **self._token(token_id, position[token_id]),
            "top_logprobs": [self._token(each, position[each]) for each in (*best, *listed)],
        }

    def _token(self, token_id: int, logprob: Logprob) -> dict[str, Any]:
        utf8 = self.tokenizer.token_text(token_id).utf8
        return {
            "token": self.name(token_id),
            "logprob": _finite(logprob),
            "bytes": None if utf8 is None else list(utf8),
        }

    def _by_id(self, position: TokenLogprobs) -> dict[str, Any]:
        return {
            str(token_id): {"logprob": _finite(logprob), "rank": logprob.rank, "decoded_token": self.name(token_id)}
            for token_id, logprob in self._top(position)
        }

    def _top(self, position: TokenLogprobs) -> Iterator[tuple[int, Logprob]]:
        """Yield the chosen token, the `num_top` likeliest and the listed ones; the engine may have returned more."""
        for index, (token_id, logprob) in enumerate(position.items()):
            is_likely = self.num_top < 0 or (logprob.rank is not None and logprob.rank <= self.num_top)
            if index == 0 or is_likely or token_id in self.listed:
                yield token_id, logprob


class CompletionLogprobs:
    """The parallel lists of one choice of a completion, as they grow: `text_offset` goes on from chunk to chunk."""

    def __init__(self, formatter: LogprobsFormatter, offsets: TokenOffsets) -> None:
        self._formatter = formatter
        self._offsets = offsets

    def format(self, token_ids: Sequence[int], positions: PositionLogprobs) -> dict[str, list[Any]]:
        """Format the next tokens."""
        pairs = list(zip(token_ids, positions, strict=True))
        return {
            "text_offset": [self._offsets.advance(token_id) for token_id in token_ids],
            "token_logprobs": [
                None if position is None else _finite(position[token_id]) for token_id, position in pairs
            ],
            "tokens": [self._formatter.name(token_id) for token_id in token_ids],
            "top_logprobs": [None if position is None else self._formatter.by_text(position) for position in positions],
        }


def _finite(logprob: Logprob) -> float:
    return logprob.logprob if logprob.logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
