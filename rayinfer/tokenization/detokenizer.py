"""Token ids to text, one token at a time and at a constant price, whatever the tokenizer's decoder is."""

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer as Backend

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class Detokenized(NamedTuple):
    """Text that one more token adds.

    Uncertain text may turn into replacement characters when the run of byte tokens it comes from proves broken. A
    certain answer confirms the uncertain text before it, or, when it `retracts`, replaces that text.
    """

    text: str
    is_certain: bool = True
    retracts: bool = False


NOTHING = Detokenized("")
NOTHING_YET = Detokenized("", is_certain=False)


class Detokenizer(Protocol):
    """The text of one growing sequence of token ids."""

    def step(self, token_id: int) -> Detokenized:
        """Add the next token."""
        ...

    def flush(self) -> Detokenized:
        """Return what was held back: no token follows."""
        ...


class DecoderTables:
    """One tokenizer's table from ids to text, looked up once per id and shared by all of its sequences."""

    def __init__(self, backend: Backend, special_ids: frozenset[int]) -> None:
        self._backend = backend
        self._special_ids = special_ids
        steps = decoder_steps(backend)
        kinds = [str(step["type"]) for step in steps]
        self._token_bytes: dict[int, bytes] = {}
        self._pieces: dict[int, str | None] = {}
        self._is_byte_level = "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}
        self._anchor = self._find_anchor() if is_piecewise(steps) else None
        self._byte_tokens = self._find_byte_tokens() if "ByteFallback" in kinds else {}
        # The character that a text loses when it begins with it; "" when it loses nothing.
        self.stripped_character = str(steps[-1]["content"]) if kinds[-1:] == ["Strip"] and steps[-1]["start"] else ""

    def start(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """Begin the text that follows a prompt."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        if self._is_byte_level:
            return ByteLevelDetokenizer(self, skipped)
        if self._anchor is not None:
            has_context = any(token_id not in skipped for token_id in reversed(prompt_token_ids))
            return PieceDetokenizer(self, skipped, has_context=has_context)
        context = [token_id for token_id in prompt_token_ids[-8:] if token_id not in skipped]
        return WindowDetokenizer(self, skipped, context)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode ids at once, special ones included."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    def byte_of(self, token_id: int) -> int | None:
        """Return the byte that a token like <0x0A> stands for, None for any other token."""
        return self._byte_tokens.get(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a byte-level token stands for."""
        known = self._token_bytes.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id) or ""
            try:
                known = bytes([BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:  # an added token, kept as plain text
                known = token.encode()
            self._token_bytes[token_id] = known
        return known

    def piece(self, token_id: int) -> str | None:
        """Return the text that a token adds behind other tokens, None for an id that is no token."""
        try:
            return self._pieces[token_id]
        except KeyError:
            assert self._anchor is not None
            before = len(self.decode([self._anchor]))
            text = self.decode([self._anchor, token_id]) if self.knows(token_id) else None
            piece = self._pieces[token_id] = None if text is None else text[before:]
            return piece

    def knows(self, token_id: int) -> bool:
        """Return whether an id is a token; models often have more ids than their tokenizers."""
        return self._backend.id_to_token(token_id) is not None

    def utf8_of(self, token_id: int) -> bytes | None:
        """Return the bytes that a token adds behind others; None where its neighbors decide its text."""
        if self._is_byte_level:
            return self.token_bytes(token_id)
        byte = self.byte_of(token_id)
        if byte is not None:
            return bytes((byte,))
        text = self.decode([token_id]) if self._anchor is None else self.piece(token_id) or ""
        return None if self._anchor is None and REPLACEMENT in text else text.encode()

    def _find_anchor(self) -> int | None:
        """Find a plain word that can stand for "some text came before"."""
        for token_id in range(self._backend.get_vocab_size()):
            text = self.decode([token_id]) if token_id not in self._special_ids else ""
            if text.isascii() and text.isalnum() and self.decode([token_id, token_id]).startswith(text):
                return token_id
        return None

    def _find_byte_tokens(self) -> dict[int, int]:
        matches = ((token_id, BYTE_TOKEN.fullmatch(token)) for token, token_id in self._backend.get_vocab().items())
        return {token_id: int(match[1], 16) for token_id, match in matches if match}


class ByteLevelDetokenizer:
    """Detokenizer of byte-level tokens: the text is their bytes, decoded from UTF-8."""

    def __init__(self, tables: DecoderTables, skipped: frozenset[int]) -> None:
        self._tables = tables
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> Detokenized:
        """Take the next token; an incomplete character waits for the rest of its bytes."""
        if token_id in self._skipped:
            return NOTHING
        return Detokenized(self._utf8.decode(self._tables.token_bytes(token_id)))

    def flush(self) -> Detokenized:
        """Give up an incomplete character."""
        return Detokenized(self._utf8.decode(b"", final=True))


class PieceDetokenizer:
    """Detokenizer of tokens whose text depends on others only by being the first.

    Tokens like <0x0A> are the exception: the decoder takes an unbroken run of them as a whole, and when the run is not
    valid UTF-8 every byte in it becomes a replacement character. So the text of a run is uncertain until it ends.
    """

    def __init__(self, tables: DecoderTables, skipped: frozenset[int], *, has_context: bool) -> None:
        self._tables = tables
        self._skipped = skipped
        self._has_context = has_context
        self._num_bytes = 0  # in the run so far
        self._is_run_broken = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")

    def step(self, token_id: int) -> Detokenized:
        """Add the next token."""
        if token_id in self._skipped:
            return NOTHING_YET if self._num_bytes else NOTHING
        byte = self._tables.byte_of(token_id)
        if byte is not None:
            return self._extend_run(byte)
        piece = self._tables.piece(token_id)
        if piece is None:
            return NOTHING_YET if self._num_bytes else NOTHING
        if self._num_bytes:
            ended = self._end_run()
            return Detokenized(ended.text + piece, retracts=ended.retracts)
        if not self._has_context:
            self._has_context = True
            return Detokenized(self._tables.decode([token_id]))
        return Detokenized(piece)

    def flush(self) -> Detokenized:
        """End the run of bytes, if there is one."""
        return self._end_run() if self._num_bytes else NOTHING

    def _extend_run(self, byte: int) -> Detokenized:
        self._num_bytes += 1
        if self._is_run_broken:
            return NOTHING_YET
        try:
            character = self._utf8.decode(bytes((byte,)))
        except UnicodeDecodeError:
            self._is_run_broken = True
            return NOTHING_YET
        if character and not self._has_context:
            self._has_context = True
            character = character.removeprefix(self._tables.stripped_character)
        return Detokenized(character, is_certain=False)

    def _end_run(self) -> Detokenized:
        is_broken = self._is_run_broken or bool(self._utf8.getstate()[0])
        ended = Detokenized(REPLACEMENT * self._num_bytes, retracts=True) if is_broken else NOTHING
        self._num_bytes, self._is_run_broken, self._has_context = 0, False, True
        self._utf8.reset()
        return ended


class WindowDetokenizer:
    """Detokenizer for any other decoder: the text of a window of tokens, less that without the newest ones."""

    def __init__(self, tables: DecoderTables, skipped: frozenset[int], context: Sequence[int]) -> None:
        self._tables = tables
        self._skipped = skipped
        self._window = list(context)
        self._known_text = tables.decode(context)
        self._num_known = len(context)

    def step(self, token_id: int) -> Detokenized:
        """Take the next token; text that ends in a replacement character waits, for its character may be incomplete."""
        if token_id in self._skipped:
            return NOTHING
        self._window.append(token_id)
        if self._tables.byte_of(token_id) is not None:  # one of a run, which may yet prove broken as a whole
            return NOTHING
        text = self._tables.decode(self._window)
        if len(text) <= len(self._known_text) or text.endswith(REPLACEMENT):
            return NOTHING
        new = text[len(self._known_text) :]
        del self._window[: self._num_known]
        self._num_known = len(self._window)
        self._known_text = self._tables.decode(self._window)
        return Detokenized(new)

    def flush(self) -> Detokenized:
        """Give up what waits for more bytes."""
        new = self._tables.decode(self._window)[len(self._known_text) :]
        self._known_text += new
        return Detokenized(new)


def decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    """List the steps of a tokenizer's decoder, with their settings."""
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def is_piecewise(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a token's text depends on its neighbors by nothing but being first or being in a run of bytes."""
    kinds = [step["type"] for step in steps]
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    if "ByteFallback" in kinds[: max(fused - 1, 0)]:
        return False  # further steps would change the text of a run of bytes
    strips_at_most_one = all(
        step["type"] == "Strip" and step["start"] <= 1 and not step["stop"] for step in steps[fused + 1 :]
    )
    return strips_at_most_one and set(kinds[:fused]) <= {"Replace", "ByteFallback", "Metaspace", "WordPiece", "Strip"}


def _byte_of_character() -> dict[str, int]:
    """Undo the byte-level alphabet: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_of_character()
