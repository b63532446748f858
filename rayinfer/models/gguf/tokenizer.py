"""Builds tokenizer.json and tokenizer_config.json from a GGUF file's metadata (no torch here)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.gguf.gguf_file import GgufFile

# Token types that GGUF numbers; the others are ordinary vocabulary.
CONTROL = 3
USER_DEFINED = 4

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

# The special tokens that have a name: GGUF's word -> tokenizer_config.json's.
SPECIAL_TOKENS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def write_tokenizer(source: GgufFile, folder: Path, *, max_length: int) -> None:
    """Write the two tokenizer files; raises UnsupportedArchitecture for a kind that cannot be rebuilt exactly."""
    kind = source.require("tokenizer.ggml.model")
    build = BUILDERS.get(kind)
    if build is None:
        raise UnsupportedArchitecture(
            f"{source.path}: the tokenizer {kind!r} is not supported; known: {', '.join(sorted(BUILDERS))}"
        )
    tokens = source.require("tokenizer.ggml.tokens")
    tokenizer = build(source, tokens)
    _add_special_tokens(source, tokens, tokenizer)
    _add_template(source, tokens, tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = _tokenizer_config(source, tokens, max_length)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def special_token_id(source: GgufFile, name: str) -> int | None:
    """Return the id of the "bos", "eos", "eot" (end of turn), "unknown" or "padding" token, if the file names one."""
    token_id: int | None = source.get(f"tokenizer.ggml.{name}_token_id")
    return token_id


def adds_token(source: GgufFile, name: str) -> bool:
    """Return whether encoding puts the "bos" token in front, or the "eos" token behind."""
    is_default = name == "bos" and (
        source.get("tokenizer.ggml.model") == "llama" or source.get("tokenizer.ggml.pre") in LLAMA3_NAMES
    )
    return bool(source.get(f"tokenizer.ggml.add_{name}_token", is_default))


def _byte_level_bpe(source: GgufFile, tokens: list[str]) -> Tokenizer:
    name = source.get("tokenizer.ggml.pre", "gpt-2")
    words = WORD_SPLITTERS.get(name)
    if words is None:
        raise UnsupportedArchitecture(
            f"{source.path}: the pre-tokenizer {name!r} is not supported; known: {', '.join(sorted(WORD_SPLITTERS))}"
        )
    merges = [_pair(source, merge) for merge in source.require("tokenizer.ggml.merges")]
    # Llama 3 takes a whole word that is in the vocabulary, whatever the merges say.
    model = models.BPE(vocab=_vocabulary(tokens), merges=merges, ignore_merges=name in LLAMA3_NAMES)
    tokenizer = Tokenizer(model)
    if name in COMPOSING_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = words()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(source: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = source.require("tokenizer.ggml.scores")
    vocabulary = _vocabulary(tokens)
    unknown = special_token_id(source, "unknown")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_by_score(vocabulary, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    leading_space = source.get("tokenizer.ggml.add_space_prefix", True)
    marks: list[Any] = [normalizers.Prepend("▁")] if leading_space else []
    tokenizer.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", "▁")])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if leading_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges_by_score(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Derive merge rules: every split of a token into two others, tokens with higher scores first."""
    splits = [
        (left, right)
        for token in vocabulary
        for cut in range(1, len(token))
        if (left := token[:cut]) in vocabulary and (right := token[cut:]) in vocabulary
    ]
    return sorted(
        splits, key=lambda pair: (-scores[vocabulary["".join(pair)]], vocabulary[pair[0]], vocabulary[pair[1]])
    )


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _pair(source: GgufFile, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelLoadError(f"{source.path}: the tokenizer's merge {merge!r} is not a pair")
    return left, right


def _add_special_tokens(source: GgufFile, tokens: list[str], tokenizer: Tokenizer) -> None:
    types = source.get("tokenizer.ggml.token_type", [])
    for token, kind in zip(tokens, types, strict=False):
        if kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_template(source: GgufFile, tokens: list[str], tokenizer: Tokenizer) -> None:
    """Add the beginning and end tokens to encoded texts, if the file asks for them."""
    before, behind = (
        [tokens[token_id]] if adds_token(source, name) and (token_id := special_token_id(source, name)) is not None
        else []
        for name in ("bos", "eos")
    )  # fmt: skip
    if before or behind:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *behind],
            pair=[
                *before,
                "$A",
                *behind,
                *(f"{token}:1" for token in before),
                "$B:1",
                *(f"{token}:1" for token in behind),
            ],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (*before, *behind)],
        )


def _tokenizer_config(source: GgufFile, tokens: list[str], max_length: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_token(source, "bos"),
        "add_eos_token": adds_token(source, "eos"),
    }
    for name, key in SPECIAL_TOKENS.items():
        if (token_id := special_token_id(source, name)) is not None:
            settings[key] = tokens[token_id]
    if template := source.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return settings


def _gpt2_words() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


def _words_by(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# Qwen's own tokenizers compose characters and their marks first, which GGUF files leave out.
COMPOSING_NAMES = ("qwen2",)
LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")

WORD_SPLITTERS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), _gpt2_words),
        **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _single_digits),
        **dict.fromkeys(LLAMA3_NAMES, lambda: _words_by(LLAMA3_WORDS)),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), lambda: _words_by(QWEN2_WORDS)),
    }
)

BUILDERS: Mapping[str, Callable[[GgufFile, list[str]], Tokenizer]] = MappingProxyType(
    {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
)
