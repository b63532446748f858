"""Single tokens as text, or as bytes where they are no whole characters."""

from typing import NamedTuple

from rayinfer.tokenization.detokenizer import DecoderTables


class TokenText(NamedTuple):
    """A token as it reads behind other tokens.

    Bytes that are no whole characters are written as OpenAI does, `bytes:\\xf0\\x9f`, and an id that is no token as
    vLLM does, `token_id:7`.
    """

    text: str
    utf8: bytes | None  # None where the token's neighbors decide its bytes


class TokenTexts:
    """Texts of one tokenizer's tokens, each made once."""

    def __init__(self, tables: DecoderTables) -> None:
        self._tables = tables
        self._known: dict[int, TokenText] = {}

    def read(self, token_id: int) -> TokenText:
        """Return a token's text."""
        text = self._known.get(token_id)
        if text is None:
            text = self._known[token_id] = self._decode(token_id)
        return text

    def _decode(self, token_id: int) -> TokenText:
        if not self._tables.knows(token_id):
            return TokenText(f"token_id:{token_id}", None)
        utf8 = self._tables.utf8_of(token_id)
        if utf8 is None:
            return TokenText(self._tables.decode([token_id]), None)
        try:
            return TokenText(utf8.decode(), utf8)
        except UnicodeDecodeError:
            return TokenText("bytes:" + repr(utf8)[2:-1], utf8)
