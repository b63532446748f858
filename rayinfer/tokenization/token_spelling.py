"""Single tokens as text, or as bytes where they are no whole characters."""

from typing import NamedTuple

from rayinfer.tokenization.detokenizer import DecoderTables


class SpelledToken(NamedTuple):
    """A token as it reads behind other tokens.

    Bytes that are no whole characters are written as OpenAI does, `bytes:\\xf0\\x9f`, and an id that is no token as
    vLLM does, `token_id:7`.
    """

    text: str
    utf8: bytes | None  # None where the token's neighbours decide what it says


class TokenSpelling:
    """The texts of one tokenizer's tokens, each made once."""

    def __init__(self, tables: DecoderTables) -> None:
        self._tables = tables
        self._known: dict[int, SpelledToken] = {}

    def spell(self, token_id: int) -> SpelledToken:
        """Return a token's text."""
        spelled = self._known.get(token_id)
        if spelled is None:
            spelled = self._known[token_id] = self._spell(token_id)
        return spelled

    def _spell(self, token_id: int) -> SpelledToken:
        if not self._tables.knows(token_id):
            return SpelledToken(f"token_id:{token_id}", None)
        utf8 = self._tables.utf8_of(token_id)
        if utf8 is None:
            return SpelledToken(self._tables.decode([token_id]), None)
        try:
            return SpelledToken(utf8.decode(), utf8)
        except UnicodeDecodeError:
            return SpelledToken("bytes:" + repr(utf8)[2:-1], utf8)
