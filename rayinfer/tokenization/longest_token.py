"""How much text one token can stand for at most, where a tokenizer's make sets a limit at all."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

# What composes characters makes one of at most four: no character decomposes into more of them canonically.
_CHARS_PER_COMPOSED = 4
_COMPOSING_NORMALIZERS = frozenset({"NFC", "NFKC"})
_NORMALIZERS_THAT_KEEP_ALL = frozenset({"NFD", "NFKD", "Prepend", "ByteLevel"})
_PRE_TOKENIZERS_THAT_KEEP_ALL = frozenset({"ByteLevel", "Digits", "Metaspace"})


def max_chars_per_token(backend: Backend) -> int | None:
    """Return a number of characters that no token exceeds; None where a token may swallow any amount of text."""
    settings = json.loads(backend.to_str())
    normalizers = _steps(settings["normalizer"], "normalizers")
    pre_tokenizers_ = _steps(settings["pre_tokenizer"], "pretokenizers")
    added, model = settings["added_tokens"], settings["model"]
    keeps_all = (
        all(_keeps_all_characters(step) for step in normalizers)
        and all(_keeps_all_text(step) for step in pre_tokenizers_)
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )
    if not keeps_all or not _spells_everything(model, [*normalizers, *pre_tokenizers_]):
        return None
    # In a byte-level vocabulary a character is a byte, and no character of a text has less than one.
    longest = max(len(token) for token in (*model["vocab"], *(token["content"] for token in added)))
    composes = any(step["type"] in _COMPOSING_NORMALIZERS for step in normalizers)
    return longest * _CHARS_PER_COMPOSED if composes else longest


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
    return normalizer["type"] in _COMPOSING_NORMALIZERS | _NORMALIZERS_THAT_KEEP_ALL


def _keeps_all_text(pre_tokenizer: Mapping[str, Any]) -> bool:
    if pre_tokenizer["type"] in ("Split", "Punctuation"):
        return bool(pre_tokenizer["behavior"] != "Removed")
    return pre_tokenizer["type"] in _PRE_TOKENIZERS_THAT_KEEP_ALL


def _spells_everything(model: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> bool:
    """Say whether text that no longer token knows is spelled byte by byte, not left out or put down as unknown."""
    if model["type"] != "BPE":
        return False
    if any(step["type"] == "ByteLevel" for step in steps):
        return set(pre_tokenizers.ByteLevel.alphabet()) <= model["vocab"].keys()
    return bool(model["byte_fallback"]) and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
