"""Text to token ids and back, over the `tokenizers` library alone."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.tokenization.detokenizer import DecoderTables, Detokenizer
from rayinfer.tokenization.foreign_tokenizer import foreign_tokenizer_class, read_foreign_tokenizer
from rayinfer.tokenization.longest_token import find_longest_token
from rayinfer.tokenization.marian_tokenizer import (
    MARIAN_SPECIAL_TOKENS,
    MarianTokenizers,
    is_marian_folder,
    read_marian_tokenizers,
    read_vocabulary,
    target_backend,
)
from rayinfer.tokenization.text_pairs import EncodedPair, encode_pair
from rayinfer.tokenization.token_texts import TokenText, TokenTexts
from rayinfer.tokenization.truncation import Truncation

LONG_TEXT_CHARS = 8192  # tokenizing more takes milliseconds, for which other threads should not have to wait
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class LocatedToken(NamedTuple):
    """A token and the characters of a text that it stands for."""

    token_id: int
    start: int
    stop: int


class Tokenizer:
    """One model's tokenizer; it gives the ids that transformers gives for the same folder.

    With `spellings` these encode texts, and the backend only decodes. A target that begins anew is a text
    of its own, not what follows a prompt: a translation.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str] | None = None,
        *,
        marian: MarianTokenizers | None = None,
        target_begins_anew: bool = False,
        tokenizer_class: str | None = None,
    ) -> None:
        self.tokenizer_class = tokenizer_class  # transformers' name of it
        self._backend = backend
        self._marian = marian
        self._target_begins_anew = target_begins_anew
        self._special_tokens = dict(special_tokens or {})
        self._special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self._tables = DecoderTables(backend, self._special_ids)
        self._token_texts = TokenTexts(self._tables)
        self._longest_token = find_longest_token(backend) if marian is None else None

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Load tokenizer.json or Marian's files, and tokenizer_config.json; raises ModelLoadError that names a file.

        A folder without these is read by the package whose entry point its `tokenizer_class` names.
        """
        settings = read_tokenizer_config(folder)
        if (foreign_class := foreign_tokenizer_class(folder)) is not None:
            tokenizer = read_foreign_tokenizer(folder, foreign_class)
            if not isinstance(tokenizer, cls):
                raise ModelLoadError(f"tokenizer_class {foreign_class!r}: read as {tokenizer!r:.80}, no Tokenizer")
            return tokenizer
        if is_marian_folder(folder):
            vocabulary, special = read_vocabulary(folder), MARIAN_SPECIAL_TOKENS | special_tokens(settings)
            marian = read_marian_tokenizers(folder, vocabulary, special)
            backend = target_backend(vocabulary, special)
            return cls(backend, special, marian=marian, target_begins_anew=True, tokenizer_class="MarianTokenizer")
        backend = _read_backend(folder / "tokenizer.json")
        try:
            _add_tokens(backend, settings)
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelLoadError(f"{folder / 'tokenizer_config.json'}: bad added tokens: {_one_line(error)}") from error
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        name = settings.get("tokenizer_class")
        return cls(
            backend,
            special_tokens(settings),
            target_begins_anew=_is_encoder_decoder(folder),
            tokenizer_class=name if isinstance(name, str) else None,
        )

    def is_equal_to(self, other: "Tokenizer") -> bool:
        """Return whether another one gives the same ids; takes a fraction of a second for a large vocabulary."""
        if self is other:
            return True
        mine, others = (self._special_tokens, self._marian), (other._special_tokens, other._marian)
        return mine == others and self._backend.to_str() == other._backend.to_str()

    @functools.cached_property
    def special_texts(self) -> tuple[str, ...]:
        """The texts of its special tokens."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(added[token_id].content for token_id in sorted(self._special_ids))

    def backend_json(self) -> str | None:
        """Return what a tokenizer.json would hold; None where there is none, as of Marian's tokenizers."""
        return None if self._marian is not None else str(self._backend.to_str())

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        check_length: Callable[[int], None] = lambda _: None,
        truncation: Truncation | None = None,
    ) -> list[int]:
        """Turn text into token ids, with the special tokens that the tokenizer puts around a text.

        Truncation removes tokens of the text, and leaves the special ones around it.

        Other threads run while a text of more than LONG_TEXT_CHARS is tokenized. `check_length` gets the number of such
        a text's tokens and may raise before the list is made: that of a million tokens takes 20 ms, and no thread runs.
        """
        _check_text(text)
        if truncation is not None:
            return self._encode_truncated(text, add_special_tokens, truncation)
        if self._marian is not None:
            return self._marian.source.encode(text, add_special_tokens=add_special_tokens)
        if len(text) <= LONG_TEXT_CHARS:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        # Of the library's ways to the same ids only those for batches let go of the interpreter's lock.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        check_length(len(encoding))
        return list(encoding.ids)

    def encode_texts(self, texts: Sequence[str], *, truncation: Truncation | None = None) -> list[list[int]]:
        """Turn several texts into token ids as `encode` does, by as many threads as there are cores."""
        if self._marian is not None:
            return [self.encode(text, truncation=truncation) for text in texts]
        for text in texts:
            _check_text(text)
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=truncation is None)
        if truncation is None:
            return [list(encoding.ids) for encoding in encodings]
        return [self._truncated(encoding, True, truncation) for encoding in encodings]

    def encode_pair(self, first: str, second: str, *, truncation: Truncation | None = None) -> EncodedPair:
        """Turn a pair of texts into token ids, with the special tokens that the tokenizer puts around a pair."""
        _check_text(first)
        _check_text(second)
        return encode_pair(self._backend, first, second, truncation)

    def locate_tokens(
        self, text: str, *, add_special_tokens: bool = True, check_length: Callable[[int], None] = lambda _: None
    ) -> list[LocatedToken]:
        """Turn text into token ids as `encode` does, with their places in it.

        Special tokens around a text have an empty place, and so have all tokens of Marian, whose pieces are cut from
        a text that is normalized before.
        """
        token_ids = self.encode(text, add_special_tokens=add_special_tokens, check_length=check_length)
        if self._marian is not None or not token_ids:
            return [LocatedToken(token_id, 0, 0) for token_id in token_ids]
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return [LocatedToken(token_id, *place) for token_id, place in zip(token_ids, encoding.offsets, strict=True)]

    def _encode_truncated(self, text: str, add_special_tokens: bool, truncation: Truncation) -> list[int]:
        if self._marian is not None:
            plain = self._marian.source.encode(text, add_special_tokens=False)
            special = self.encode(text)[len(plain) :] if add_special_tokens else []
            kept = Truncation(max(0, truncation.num_tokens - len(special)), truncation.side).cut(plain)
            return truncation.cut([*kept, *special])
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return self._truncated(encoding, add_special_tokens, truncation)

    def _truncated(self, encoding: Encoding, add_special_tokens: bool, truncation: Truncation) -> list[int]:
        """Cut a text that was encoded without special tokens, and put them around it."""
        num_special = self._backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        num_kept = max(0, truncation.num_tokens - num_special)
        if len(encoding) > num_kept:
            encoding.truncate(num_kept, direction=truncation.side)
        return truncation.cut(list(self._backend.post_process(encoding, None, add_special_tokens).ids))

    def token_piece(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it; None for an id that is no token."""
        piece: str | None = self._backend.id_to_token(token_id)
        return piece

    @property
    def marks_pieces(self) -> bool:
        """Whether the vocabulary marks pieces that continue a word, as ##ing, so that words are known by them."""
        return bool(getattr(self._backend.model, "continuing_subword_prefix", None))

    def join_pieces(self, pieces: Sequence[str]) -> str:
        """Return the text of tokens as the vocabulary spells them."""
        decoder = self._backend.decoder
        return " ".join(pieces) if decoder is None else str(decoder.decode(list(pieces)))

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The named special tokens ("bos_token", ...)."""
        return self._special_tokens

    def encode_target(self, text: str) -> list[int]:
        """Turn text into the token ids that it has as a target, without special tokens around it."""
        if self._marian is None:
            return self.encode(text, add_special_tokens=False)
        return self._marian.target.encode(text, add_special_tokens=False)

    def least_num_tokens(self, text: str) -> int:
        """Return a number of tokens that a text surely has, without tokenizing it; 0 where that is not known."""
        return 0 if self._longest_token is None else self._longest_token.least_num_tokens(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn token ids into text; ids that are no tokens have no text."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def detokenizer(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """Begin to detokenize the tokens that follow a prompt, one at a time."""
        context = () if self._target_begins_anew else prompt_token_ids
        return self._tables.start(context, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> TokenText:
        """Return a single token's text as it reads behind others, special ones included."""
        return self._token_texts.read(token_id)

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token's text, of added tokens too."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens without text when special tokens are skipped."""
        return self._special_ids

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a text."""
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a text."""
        return self._special_id("eos_token")

    def _special_id(self, name: str) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidParameter(f"a prompt must be a string, got {type(text).__name__}", "prompt")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"a lone surrogate, U+{ord(text[error.start]):04X} at position {error.start}"
        raise InvalidParameter(f"a prompt must be valid Unicode, got {found}", "prompt") from error


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json, and what an old special_tokens_map.json beside it adds."""
    settings = _read_json(folder / "tokenizer_config.json")
    old_map = folder / "special_tokens_map.json"
    if "added_tokens_decoder" not in settings and old_map.is_file():
        settings |= _read_json(old_map)
    return settings


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the named special tokens ("bos_token", ...) of a tokenizer_config.json as plain strings."""
    tokens = {name: settings.get(name) for name in SPECIAL_TOKEN_NAMES}
    return {
        name: str(token["content"] if isinstance(token, Mapping) else token)
        for name, token in tokens.items()
        if token is not None
    }


def _is_encoder_decoder(folder: Path) -> bool:
    file = folder / "config.json"
    return file.is_file() and _read_json(file).get("is_encoder_decoder") is True


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: no such file; a model folder needs it") from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object, got {type(value).__name__}")
    return value


def _read_backend(path: Path) -> Backend:
    if not path.is_file():
        raise ModelLoadError(f"{path}: no such file; a model folder needs it")
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{path}: not a tokenizer: {_one_line(error)}") from error


def _add_tokens(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Add the tokens that only tokenizer_config.json has, and make the named ones special."""
    by_id = settings.get("added_tokens_decoder") or {}
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    listed = [_added_token(by_id[key]) for key in sorted(by_id, key=int)]
    backend.add_tokens([token for token in listed if repr(token) not in known])
    is_special = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    named = [_added_token(settings[name]) for name in SPECIAL_TOKEN_NAMES if settings.get(name) is not None]
    backend.add_special_tokens([token for token in named if not is_special.get(token.content)])
    more = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    extra = [_added_token(token) for token in (more.values() if isinstance(more, Mapping) else more)]
    backend.add_special_tokens([token for token in extra if token.content not in is_special])


def _added_token(token: str | Mapping[str, Any]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True, normalized=False)
    fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(token["content"], **{name: token[name] for name in fields if name in token})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
