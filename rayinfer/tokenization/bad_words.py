"""From texts that must not appear to the token sequences that spell them."""

from dataclasses import replace

from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import MAX_BAD_SEQUENCE_TOKENS, SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer


def spell_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """Put the spellings of `bad_words` among `bad_token_sequences`; nothing is left to spell then.

    A word is spelled as it stands alone, behind a space and behind a new line. A model could still spell it in a way
    of its own, by smaller tokens. Raises InvalidParameter for a word of too many tokens.
    """
    if not params.bad_texts:
        return params
    spellings = [spelling for word in params.bad_texts for spelling in _spellings(word, tokenizer)]
    sequences = tuple(dict.fromkeys((*params.bad_sequences, *spellings)))
    return replace(params, bad_words=(), bad_token_sequences=sequences)


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    bare = word.lstrip(" ") or word
    behind_newline, newline = _encode(f"\n{bare}", tokenizer), _encode("\n", tokenizer)
    spellings = [_encode(bare, tokenizer), _encode(f" {bare}", tokenizer)]
    if behind_newline[: len(newline)] == newline:  # else the new line has merged with the word
        # SentencePiece puts a space before every text: only so does it spell a word without one.
        spellings.append(behind_newline[len(newline) :])
    longest = max(map(len, spellings))
    if not 0 < longest <= MAX_BAD_SEQUENCE_TOKENS:
        raise InvalidParameter(
            f"bad_words must hold words of 1 to {MAX_BAD_SEQUENCE_TOKENS} tokens, got {word!r:.80} of {longest}",
            "bad_words",
        )
    return [spelling for spelling in spellings if spelling]


def _encode(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    try:
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    except InvalidParameter as error:  # which speaks of a prompt
        raise InvalidParameter(f"bad_words must hold valid Unicode, got {text!r:.80}", "bad_words") from error
