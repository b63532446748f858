"""Pairs of texts as token ids, by the tokenizer's own template for pairs."""

from typing import NamedTuple

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from rayinfer.tokenization.truncation import Truncation


class EncodedPair(NamedTuple):
    """Token ids of a pair of texts with the special tokens around them."""

    token_ids: list[int]
    num_first_tokens: int  # of the first text, with the special ones around it


def encode_pair(backend: Backend, first: str, second: str, truncation: Truncation | None) -> EncodedPair:
    """Turn a pair into token ids; truncation takes tokens from the longer text, as transformers' `longest_first`."""
    # The library's way for batches lets go of the interpreter's lock.
    encodings = [backend.encode_batch_fast([text], add_special_tokens=False)[0] for text in (first, second)]
    if truncation is not None:
        room = max(0, truncation.num_tokens - backend.num_special_tokens_to_add(True))
        kept = _longest_first(len(encodings[0]), len(encodings[1]), room)
        for encoding, num_tokens in zip(encodings, kept, strict=True):
            if len(encoding) > num_tokens:
                encoding.truncate(num_tokens, direction=truncation.side)
    pair = backend.post_process(encodings[0], encodings[1], True)
    return EncodedPair(list(pair.ids), _num_first_tokens(pair))


def _longest_first(num_first: int, num_second: int, room: int) -> tuple[int, int]:
    """Divide the room for tokens: the shorter text keeps up to half of it, and the longer one the rest."""
    if num_first + num_second <= room:
        return num_first, num_second
    shorter = min(num_first, num_second, room // 2)
    return (shorter, room - shorter) if num_first <= num_second else (room - shorter, shorter)


def _num_first_tokens(pair: Encoding) -> int:
    """Return where the second text begins, by the template's types or, where it has none, by its first token."""
    if any(pair.type_ids):
        return int(pair.type_ids.index(1))
    return next((index for index, sequence in enumerate(pair.sequence_ids) if sequence == 1), len(pair))
