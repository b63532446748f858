"""Character offsets of tokens in their text."""

from collections.abc import Sequence

from rayinfer.tokenization.tokenizer import Tokenizer


class TokenOffsets:
    """Counts characters while tokens go by; parts of one character all begin where it begins.

    Skipped special tokens have no text. `context` are the tokens before the first one: they decide whether a
    SentencePiece tokenizer's text begins with a space.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._detokenizer = tokenizer.detokenizer(context, skip_special_tokens=skip_special_tokens)
        self._num_certain = 0
        self._num_uncertain = 0

    def advance(self, token_id: int) -> int:
        """Return where the next token begins."""
        offset = self._num_certain + self._num_uncertain
        new = self._detokenizer.step(token_id)
        if not new.is_certain:
            self._num_uncertain += len(new.text)
        else:
            self._num_certain += len(new.text) + (0 if new.retracts else self._num_uncertain)
            self._num_uncertain = 0
        return offset
