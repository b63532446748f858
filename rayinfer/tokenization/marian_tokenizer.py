"""Marian's tokenization: SentencePiece cuts texts, and one vocabulary in a JSON file numbers the pieces."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from rayinfer.errors import ModelLoadError
from rayinfer.tokenization.sentencepiece_model import NORMAL, SentencePieceModel, read_sentencepiece_model

SOURCE_MODEL, TARGET_MODEL, VOCABULARY = "source.spm", "target.spm", "vocab.json"
MARIAN_SPECIAL_TOKENS = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}  # where none are named
_LANGUAGE_CODE = re.compile(">>.*?<<", re.DOTALL)


class MarianTokenizer:
    """Cuts a text into the pieces of its language, and looks these up in the vocabulary of both languages.

    A stretch that these pieces do not cover is looked up as a whole, too: the other language may have it.
    """

    def __init__(self, model: SentencePieceModel, vocabulary: Mapping[str, int], special: Mapping[str, str]) -> None:
        self._vocabulary = vocabulary
        self._unknown_id = vocabulary[special["unk_token"]]
        self._end_id = vocabulary[special["eos_token"]]
        self._special = re.compile("(" + "|".join(sorted(map(re.escape, special.values()))) + ")")
        self._character_map = model.character_map
        self._pieces = _unigram(model)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Turn text into token ids; it may begin with the code of the language to answer in, such as >>fra<<."""
        tokens: list[str] = []
        for index, part in enumerate(self._special.split(text)):
            tokens += [part] if index % 2 else self._cut(part)  # what separates the parts are special tokens
        ids = [self._vocabulary.get(token, self._unknown_id) for token in tokens]
        return [*ids, self._end_id] if add_special_tokens else ids

    def _cut(self, text: str) -> list[str]:
        code = _LANGUAGE_CODE.match(text)
        text = text[code.end() :] if code else text
        if self._character_map is not None:
            text = self._character_map.normalize(text)
        text = " ".join(word for word in text.split(" ") if word)
        pieces = self._pieces.encode(text).tokens if text else []
        return [code[0], *pieces] if code else pieces


class MarianTokenizers(NamedTuple):
    """The tokenizers of the source language and of the target language."""

    source: MarianTokenizer
    target: MarianTokenizer


def is_marian_folder(folder: Path) -> bool:
    """Return whether a model's folder has Marian's files instead of a tokenizer.json."""
    return not (folder / "tokenizer.json").is_file() and (folder / SOURCE_MODEL).is_file()


def read_marian_tokenizers(folder: Path, vocabulary: Mapping[str, int], special: Mapping[str, str]) -> MarianTokenizers:
    """Read both tokenizers; `special` names all of MARIAN_SPECIAL_TOKENS."""
    source, target = (read_sentencepiece_model(folder / name) for name in (SOURCE_MODEL, TARGET_MODEL))
    if missing := [token for token in special.values() if token not in vocabulary]:
        raise ModelLoadError(f"{folder / VOCABULARY}: lacks {', '.join(missing)}")
    return MarianTokenizers(*(MarianTokenizer(model, vocabulary, special) for model in (source, target)))


def read_vocabulary(folder: Path) -> dict[str, int]:
    """Read vocab.json; raises ModelLoadError that names it."""
    file = folder / VOCABULARY
    try:
        vocabulary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file}: cannot be read: {error}") from None
    if not isinstance(vocabulary, dict) or not all(isinstance(token_id, int) for token_id in vocabulary.values()):
        raise ModelLoadError(f"{file}: must map tokens to their ids")
    return vocabulary


def target_backend(vocabulary: Mapping[str, int], special: Mapping[str, str]) -> Backend:
    """Build the backend that decodes ids: tokens one after the other, with marks for blanks."""
    backend = Backend(models.WordLevel(dict(vocabulary), unk_token=special["unk_token"]))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(sorted(set(special.values())))
    return backend


def _unigram(model: SentencePieceModel) -> Backend:
    # The ids here are of no use: pieces are looked up by their texts. No text holds the first one.
    pieces = [("", 0.0), *((piece.text, piece.score) for piece in model.pieces if piece.kind == NORMAL)]
    backend = Backend(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return backend
