"""A tokenizer.json with a token for each byte, one for the end, and perhaps some of two bytes."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel


def byte_tokenizer_json(pairs: Sequence[str] = ()) -> str:
    """Return its contents; token 256 is the end, and those of the pairs follow it."""
    vocab = {symbol: byte for byte, symbol in enumerate(_symbols())}
    vocab |= {"<|end|>": 256} | {pair: 257 + index for index, pair in enumerate(pairs)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[(first, second) for first, second in pairs]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer.to_str()


def _symbols() -> list[str]:
    """Return GPT-2's character for each byte: printable ones stand for themselves, others follow behind 255."""
    others = iter(range(256, 512))
    is_printable = [33 <= byte <= 126 or (161 <= byte <= 255 and byte != 173) for byte in range(256)]
    return [chr(byte if is_printable[byte] else next(others)) for byte in range(256)]
