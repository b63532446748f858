"""How the next token is chosen and when generation stops, checked once when it is built."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayinfer.errors import InvalidParameter

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling settings of one request; the names and the defaults are vLLM's.

    Raises InvalidParameter (a ValueError) that names the field, the value and its range.
    """

    n: int = 1  # answers to give
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 and -1 switch it off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0  # locally typical sampling (Meister et al. 2022)
    repetition_penalty: float = 1.0  # over prompt and output (Keskar et al. 2019)
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    logit_bias: Mapping[int, float] | None = None  # by token id, added to the logits
    allowed_token_ids: Sequence[int] | None = None  # nothing else is chosen
    bad_words: Sequence[str] | None = ()  # texts that do not appear; whoever has the tokenizer spells them
    bad_token_sequences: Sequence[Sequence[int]] | None = ()  # the last token of each never follows the others
    seed: int | None = None
    max_tokens: int | None = 16  # None: whatever the context leaves; 0: the prompt is only scored
    min_tokens: int = 0
    stop: Sequence[str] | str | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # how many of the most likely tokens are told beside each chosen one; 0: it alone
    prompt_logprobs: int | None = None  # likewise for the tokens of the prompt

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        _check_integer("n", self.n, 1, MAX_CHOICES)
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_integer("top_k", self.top_k, -1, 2**31 - 1)
        _check_number("top_p", self.top_p, 0.0, 1.0, low_is_open=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, low_is_open=True)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}", "min_tokens"
            )
        self._check_stops()

    def _check_stops(self) -> None:
        stop, stop_token_ids = self.stop_strings, self.stop_ids
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidParameter(f"stop must hold at most {MAX_STOP_STRINGS} strings, got {len(stop)}", "stop")
        if not all(isinstance(text, str) and text for text in stop):
            raise InvalidParameter("stop must hold non-empty strings only", "stop")
        for token_id in stop_token_ids:
            _check_integer("stop_token_ids", token_id, 0, 2**31 - 1)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as they are kept: always a tuple."""
        return self.stop  # type: ignore[return-value]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The stop token ids as they are kept: always a tuple."""
        return self.stop_token_ids  # type: ignore[return-value]

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on the tokens that came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameter(f"{name} must be an integer from {low} to {high}, got {value!r}", name)


def _check_number(name: str, value: object, low: float, high: float, *, low_is_open: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (low_is_open and value == low):  # type: ignore[operator]
        bracket = "(" if low_is_open else "["
        raise InvalidParameter(f"{name} must lie in {bracket}{low:g}, {high:g}], got {value!r}", name)
