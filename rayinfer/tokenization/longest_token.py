"""Longest text of a single token, where the kind of tokenizer sets a limit."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from rayinfer.tokenization.detokenizer import BYTE_OF_CHARACTER

# What composes characters makes one of at most four: no character decomposes into more of them canonically.
_CHARS_PER_COMPOSED = 4
_CONTINUATION_BYTES = range(0x80, 0xC0)  # in UTF-8 a character's bytes behind its first
_COMPOSING_NORMALIZERS = frozenset({"NFC", "NFKC"})
_NORMALIZERS_THAT_KEEP_ALL = frozenset({"NFD", "NFKD", "Prepend", "ByteLevel"})
_PRE_TOKENIZERS_THAT_KEEP_ALL = frozenset({"ByteLevel", "Digits", "Metaspace"})


@dataclass(frozen=True, slots=True)
class LongestToken:
    """A length that no token exceeds."""

    num_chars: int
    unencodable: str = ""  # characters that the vocabulary lacks: they may become no token at all

    def least_num_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least."""
        num_unencodable = sum(text.count(character) for character in self.unencodable)
        return math.ceil((len(text) - num_unencodable) / self.num_chars)


def find_longest_token(backend: Backend) -> LongestToken | None:
    """Measure a tokenizer's longest token; None where a token may swallow any amount of text."""
    settings = json.loads(backend.to_str())
    normalizers = _steps(settings["normalizer"], "normalizers")
    pre_tokenizers = _steps(settings["pre_tokenizer"], "pretokenizers")
    added, model = settings["added_tokens"], settings["model"]
    unencodable = _unencodable(model, [*normalizers, *pre_tokenizers])
    keeps_all = (
        all(_keeps_all_characters(step) for step in normalizers)
        and all(_keeps_all_text(step) for step in pre_tokenizers)
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )
    if unencodable is None or not keeps_all:
        return None
    # In a byte-level vocabulary a character is a byte, and no character of a text has less than one.
    longest = max(len(token) for token in (*model["vocab"], *(token["content"] for token in added)))
    composes = any(step["type"] in _COMPOSING_NORMALIZERS for step in normalizers)
    return LongestToken(longest * _CHARS_PER_COMPOSED if composes else longest, unencodable)


def _steps(step: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [inner for member in step[members] for inner in _steps(member, members)]


def _keeps_all_characters(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        replaced = normalizer["pattern"].get("String")
        return replaced is not None and len(normalizer["content"]) >= len(replaced)
    return bool(normalizer["type"] in _COMPOSING_NORMALIZERS | _NORMALIZERS_THAT_KEEP_ALL)


def _keeps_all_text(pre_tokenizer: Mapping[str, Any]) -> bool:
    if pre_tokenizer["type"] in ("Split", "Punctuation"):
        return bool(pre_tokenizer["behavior"] != "Removed")
    return bool(pre_tokenizer["type"] in _PRE_TOKENIZERS_THAT_KEEP_ALL)


def _unencodable(model: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> str | None:
    """List the characters that byte-wise tokenization may lose; None when it is not byte-wise or may lose more."""
    if model["type"] != "BPE":
        return None
    if not any(step["type"] == "ByteLevel" for step in steps):
        is_complete = model["byte_fallback"] and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
        return "" if is_complete else None
    missing = [byte for character, byte in BYTE_OF_CHARACTER.items() if character not in model["vocab"]]
    # A character of several bytes leaves at least those behind its first, as long as there are tokens for them.
    if any(byte in _CONTINUATION_BYTES for byte in missing):
        return None
    return "".join(chr(byte) for byte in missing if byte < _CONTINUATION_BYTES.start)
