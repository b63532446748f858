"""Benchmark workloads: prompts of random token ids and answer lengths, the same everywhere for the same seed."""

import random
from dataclasses import dataclass
from typing import NamedTuple

from rayinfer.errors import ConfigError

FIRST_TOKEN_ID = 100  # below it vocabularies keep their special tokens
DEFAULT_VOCAB_SIZE = 49_000


class LengthRange(NamedTuple):
    """A length is drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    @classmethod
    def of(cls, lengths: "int | LengthRange") -> "LengthRange":
        """Take a single length as a range of one."""
        return cls(lengths, lengths) if isinstance(lengths, int) else lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Prompts as token ids, and how many tokens each shall be answered with."""

    prompts: list[list[int]]
    output_lengths: list[int]

    @property
    def num_requests(self) -> int:
        """Return the number of prompts."""
        return len(self.prompts)

    @property
    def num_prompt_tokens(self) -> int:
        """Return the number of prompt tokens."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """Return the number of output tokens."""
        return sum(self.output_lengths)


def offline_workload(
    num_requests: int = 64,
    input_len: tuple[int, int] = (32, 256),
    output_len: tuple[int, int] = (32, 256),
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    seed: int = 0,
) -> Workload:
    """Draw a batch of requests of mixed lengths.

    The order of the draws is part of the definition: for each prompt its length and then its tokens, and
    when all prompts are drawn the output lengths. Another order would be another workload.
    """
    _check(num_requests, vocab_size, LengthRange(*input_len), LengthRange(*output_len))
    rng = random.Random(seed)
    prompts = [_random_tokens(rng, rng.randint(*input_len), vocab_size) for _ in range(num_requests)]
    return Workload(prompts=prompts, output_lengths=[rng.randint(*output_len) for _ in range(num_requests)])


def serving_workload(
    num_requests: int,
    input_len: int | LengthRange,
    output_len: int | LengthRange,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    seed: int = 0,
) -> Workload:
    """Draw prompts and answer lengths as a load client sends them.

    The order of the draws is that of `offline_workload`, but a single length takes no draw.
    """
    inputs, outputs = LengthRange.of(input_len), LengthRange.of(output_len)
    _check(num_requests, vocab_size, inputs, outputs)
    rng = random.Random(seed)
    prompts = [_random_tokens(rng, _draw(rng, inputs), vocab_size) for _ in range(num_requests)]
    return Workload(prompts=prompts, output_lengths=[_draw(rng, outputs) for _ in range(num_requests)])


def parse_length_range(text: str) -> LengthRange:
    """Read `32:256`, or `128` for a single length; raises ConfigError."""
    low, colon, high = text.partition(":")
    try:
        return LengthRange(int(low), int(high if colon else low))
    except ValueError:
        raise ConfigError(f"a length is a number or a range such as 32:256, got {text!r}") from None


def parse_lengths(text: str) -> int | LengthRange:
    """Read `32:256` as a range and `128` as the number it is; raises ConfigError."""
    lengths = parse_length_range(text)
    return lengths.low if lengths.low == lengths.high else lengths


def _draw(rng: random.Random, lengths: LengthRange) -> int:
    return lengths.low if lengths.low == lengths.high else rng.randint(*lengths)


def _random_tokens(rng: random.Random, length: int, vocab_size: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(length)]


def _check(num_requests: int, vocab_size: int, *ranges: LengthRange) -> None:
    if num_requests < 1:
        raise ConfigError(f"num_requests must be at least 1, got {num_requests}")
    if vocab_size <= FIRST_TOKEN_ID:
        raise ConfigError(f"vocab_size must be above {FIRST_TOKEN_ID}, got {vocab_size}")
    for low, high in ranges:
        if not 1 <= low <= high:
            raise ConfigError(f"a length range must rise from at least 1, got {low}:{high}")
