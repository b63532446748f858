"""Bad words to token sequences."""

from collections.abc import Callable

from rayinfer.errors import InvalidParameter
from rayinfer.tokenization.tokenizer import Tokenizer

BadWordTokenizer = Callable[[str], list[tuple[int, ...]]]


def bad_word_tokenizer(tokenizer: Tokenizer) -> BadWordTokenizer:
    """Make a function that tokenizes a word alone, behind a space and behind a new line.

    A model could still generate it by other, smaller tokens.
    """

    def tokenize(word: str) -> list[tuple[int, ...]]:
        bare = word.lstrip(" ") or word
        behind_newline, newline = _encode(f"\n{bare}", tokenizer), _encode("\n", tokenizer)
        sequences = [_encode(bare, tokenizer), _encode(f" {bare}", tokenizer)]
        if behind_newline[: len(newline)] == newline:  # else the new line has merged with the word
            # SentencePiece puts a space before every text: only so is a word encoded without one.
            sequences.append(behind_newline[len(newline) :])
        return [sequence for sequence in sequences if sequence]

    return tokenize


def _encode(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    try:
        return tuple(tokenizer.encode_target(text))
    except InvalidParameter as error:  # which speaks of a prompt
        raise InvalidParameter(f"bad_words must hold valid Unicode, got {text!r:.80}", "bad_words") from error
