"""Sampling parameters: the choice of tokens and the end of generation, validated when built."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rayinfer.errors import InvalidParameter, shown
from rayinfer.grammars.spec import StructuredOutputsParams

# What an engine can bear of one request; a service has lower limits of its own, see `servers/request_limits.py`.
MAX_CHOICES = 1024
MAX_STOP_STRINGS = 256
MAX_LOGPROBS = 1000
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_BIASED_TOKENS = 2**14
MAX_BAD_WORDS = 1024
MAX_LOGIT_BIAS = 100.0
MAX_BAD_WORD_CHARS = 256
MAX_BAD_SEQUENCES = 4096
MAX_BAD_SEQUENCE_TOKENS = 64
MAX_DRAFT_TOKENS = 16
MIN_REPETITION_PENALTY = 1e-6  # scores are divided by it, and float32 ends at 3e38
_MAX_INT32 = 2**31 - 1
_SEEDS = (-(2**63), 2**64 - 1)
_NOTHING = ()  # every empty tuple is this one

# Tokens to draft in a step: none, as many as pay, or up to a number.
Speculation = Literal["off", "auto"] | int


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling settings of one request; the names and the defaults are vLLM's.

    Lists are kept as tuples, under the names at the end of this class; what was kept may be given again.
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
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None = None  # by token id, added to the logits
    allowed_token_ids: Sequence[int] | None = None  # nothing else is chosen
    bad_words: Sequence[str] | None = ()  # texts that do not appear; tokenized by the owner of the tokenizer
    bad_token_sequences: Sequence[Sequence[int]] | None = ()  # the last token of each never follows the others
    seed: int | None = None
    max_tokens: int | None = 16  # None: whatever the context leaves; 0: the prompt is only scored
    min_tokens: int = 0
    stop: Sequence[str] | str | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # how many of the most likely tokens are returned beside each chosen one; 0: it alone
    logprob_token_ids: Sequence[int] | None = ()  # tokens with logprobs at every place, with `logprobs`
    prompt_logprobs: int | None = None  # like `logprobs`, for the tokens of the prompt; -1: the whole vocabulary
    structured_outputs: StructuredOutputsParams | None = None  # the form that the answer is held to
    speculation: Speculation | None = None  # None: the engine's setting; the tokens are the same with any

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lengths()
        self._check_flags()
        self._keep_lists()
        if self.structured_outputs is not None:
            object.__setattr__(self, "structured_outputs", StructuredOutputsParams.of(self.structured_outputs))
            self._check_beside_grammar()
        self.check_leaves_a_token()

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidParameter for a token id that a model's vocabulary lacks."""
        if self.stop_ids:
            _check_vocabulary("stop_token_ids", self.stop_ids, vocab_size)
        if self.listed_ids:
            _check_vocabulary("logprob_token_ids", self.listed_ids, vocab_size)
        if self.has_token_rules:
            _check_vocabulary("logit_bias", (token_id for token_id, _ in self.biases), vocab_size)
            _check_vocabulary("allowed_token_ids", self.allowed_ids or (), vocab_size)
            for sequence in self.bad_sequences:
                _check_vocabulary("bad_token_sequences", sequence, vocab_size)

    def check_leaves_a_token(
        self,
        eos_token_ids: tuple[int, ...] = (),
        vocab_size: int = _MAX_INT32,
        *,
        never_generated: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """Raise InvalidParameter unless some token is allowed at every place of every answer of a model.

        `never_generated` holds the bad sequences of the model itself, which add to those of the request.
        A token that ends a bad sequence counts as forbidden, even though it is so only after the rest of the sequence:
        what remains is then allowed whatever came before.
        """
        if not self.has_token_rules and not self.min_tokens:
            return
        forbidden = {sequence[-1] for sequence in (*self.bad_sequences, *never_generated)}
        if self.min_tokens:
            forbidden.update(self.stop_ids if self.ignore_eos else (*self.stop_ids, *eos_token_ids))
        if self.allowed_ids is None:
            is_left = len(forbidden) < vocab_size
        else:
            is_left = not forbidden.issuperset(self.allowed_ids)
        if not is_left:
            field = "bad_words" if self.allowed_ids is None else "allowed_token_ids"
            given = "all" if self.allowed_ids is None else shown(list(self.allowed_ids))
            raise InvalidParameter(
                f"{field} must leave a token that neither ends a bad word nor, with min_tokens, ends the answer, "
                f"got {given}" + _never_generated_note(never_generated),
                field,
            )

    def check_prompt_is_not_scored(self) -> None:
        """Raise InvalidParameter if prompt scores are asked for, which only decoder-only models have."""
        if self.prompt_logprobs is not None:
            raise InvalidParameter("prompt_logprobs must be null: this model does not score prompts", "prompt_logprobs")
        if self.max_tokens == 0:
            raise InvalidParameter("max_tokens must be at least 1: this model does not score prompts", "max_tokens")

    def _check_numbers(self) -> None:
        _check_integer("n", self.n, 1, MAX_CHOICES)
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_integer("top_k", self.top_k, -1, _MAX_INT32)
        _check_number("top_p", self.top_p, 0.0, 1.0, low_is_open=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("typical_p", self.typical_p, 0.0, 1.0, low_is_open=True)
        _check_number("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 10.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _check_integer("seed", self.seed, *_SEEDS)
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_integer("prompt_logprobs", self.prompt_logprobs, -1, MAX_LOGPROBS)
        if self.speculation not in (None, "off", "auto"):
            _check_speculation(self.speculation)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 0, _MAX_INT32)
        _check_integer("min_tokens", self.min_tokens, 0, _MAX_INT32)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}", "min_tokens"
            )

    def _check_beside_grammar(self) -> None:
        """Refuse what could leave no token that a grammar allows, or go on behind its end."""
        conflicts = {
            "min_tokens": self.min_tokens > 0,
            "allowed_token_ids": self.allowed_token_ids is not None,
            "bad_words": bool(self.bad_words),
            "bad_token_sequences": bool(self.bad_token_sequences),
            "ignore_eos": self.ignore_eos,
        }
        for name, is_set in conflicts.items():
            if is_set:
                raise InvalidParameter(f"{name} is not allowed beside structured_outputs", name)

    def _check_flags(self) -> None:
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(f"{name} must be true or false, got {shown(getattr(self, name))}", name)

    def _keep_lists(self) -> None:
        """Keep lists as tuples; the empty ones that most requests have are some already."""
        if self.stop is not _NOTHING:
            stop = (self.stop,) if isinstance(self.stop, str) else self.stop
            self._keep("stop", _texts("stop", stop, MAX_STOP_STRINGS))
        if self.stop_token_ids is not _NOTHING:
            self._keep("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.logprob_token_ids is not _NOTHING:
            listed = _token_ids("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
            self._keep("logprob_token_ids", tuple(dict.fromkeys(listed)))
            if self.listed_ids and self.logprobs is None:
                raise InvalidParameter("logprob_token_ids is only allowed with logprobs", "logprob_token_ids")
        if self.logit_bias is not None:
            self._keep("logit_bias", _biases("logit_bias", self.logit_bias))
        if self.allowed_token_ids is not None:
            self._keep("allowed_token_ids", _token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise InvalidParameter("allowed_token_ids must hold at least one id, got none", "allowed_token_ids")
        if self.bad_words is not _NOTHING:
            self._keep("bad_words", _texts("bad_words", self.bad_words, MAX_BAD_WORDS, max_chars=MAX_BAD_WORD_CHARS))
        if self.bad_token_sequences is not _NOTHING:
            self._keep("bad_token_sequences", _sequences("bad_token_sequences", self.bad_token_sequences))

    def _keep(self, name: str, values: tuple[Any, ...]) -> None:
        object.__setattr__(self, name, values)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings."""
        return self.stop  # type: ignore[return-value]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The stop token ids."""
        return self.stop_token_ids  # type: ignore[return-value]

    @property
    def listed_ids(self) -> tuple[int, ...]:
        """The token ids whose logprobs are returned at every place, each once."""
        return self.logprob_token_ids  # type: ignore[return-value]

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """The logit bias as pairs of token id and bias, each id once."""
        return self.logit_bias or ()  # type: ignore[return-value]

    @property
    def allowed_ids(self) -> tuple[int, ...] | None:
        """The allowed token ids; None where all are allowed."""
        return self.allowed_token_ids  # type: ignore[return-value]

    def with_seed(self, seed: int) -> "SamplingParams":
        """Settle the seed of a request that came without one; the rest is checked already."""
        _check_integer("seed", seed, *_SEEDS)
        seeded = object.__new__(SamplingParams)
        for name in self.__slots__:
            object.__setattr__(seeded, name, getattr(self, name))
        object.__setattr__(seeded, "seed", seed)
        return seeded

    def with_tokenized_bad_words(self, tokenize: Callable[[str], Sequence[tuple[int, ...]]]) -> "SamplingParams":
        """Add the tokens of `bad_words` to `bad_token_sequences`; no bad words are left then.

        Raises InvalidParameter for a word of no tokens or of too many.
        """
        if not self.bad_texts:
            return self
        tokenized: list[tuple[int, ...]] = []
        for word in self.bad_texts:
            new = tokenize(word)
            tokenized += new
            longest = max(map(len, new), default=0)
            if not 0 < longest <= MAX_BAD_SEQUENCE_TOKENS:
                limits = f"1 to {MAX_BAD_SEQUENCE_TOKENS} tokens"
                raise InvalidParameter(
                    f"bad_words must hold words of {limits}, got {word!r:.80} of {longest}", "bad_words"
                )
        sequences = tuple(dict.fromkeys((*self.bad_sequences, *tokenized)))
        return replace(self, bad_words=(), bad_token_sequences=sequences)

    @property
    def bad_texts(self) -> tuple[str, ...]:
        """The bad words that are not tokenized yet."""
        return self.bad_words  # type: ignore[return-value]

    @property
    def bad_sequences(self) -> tuple[tuple[int, ...], ...]:
        """The bad token sequences."""
        return self.bad_token_sequences  # type: ignore[return-value]

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the choice depends on the tokens that came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def has_token_rules(self) -> bool:
        """Whether tokens are favored, allowed or forbidden by their ids."""
        return bool(self.biases) or self.allowed_ids is not None or bool(self.bad_sequences)


def _never_generated_note(sequences: Sequence[tuple[int, ...]]) -> str:
    return f"; the model never generates {shown([list(sequence) for sequence in sequences])}" if sequences else ""


def _check_integer(name: str, value: object, low: int, high: int, *, part: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameter(f"{part}{name} must be an integer from {low} to {high}, got {shown(value)}", name)


def _check_speculation(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DRAFT_TOKENS:
        raise InvalidParameter(
            f'speculation must be "auto", "off" or an integer from 1 to {MAX_DRAFT_TOKENS}, got {shown(value)}',
            "speculation",
        )


def _check_number(
    name: str, value: object, low: float, high: float, *, low_is_open: bool = False, part: str = ""
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (low_is_open and value == low):  # type: ignore[operator]
        bracket = "(" if low_is_open else "["
        raise InvalidParameter(f"{part}{name} must lie in {bracket}{low:g}, {high:g}], got {shown(value)}", name)


def _check_vocabulary(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidParameter(
                f"each id in {name} must lie in the vocabulary, 0 to {vocab_size - 1}, got {token_id}", name
            )


def _items(name: str, values: object, max_count: int | None = None) -> tuple[Any, ...]:
    if values is None:
        return ()
    items: tuple[Any, ...] | None = None
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping):
        with contextlib.suppress(TypeError):  # of an array of no dimension, which calls itself iterable
            items = tuple(values)
    if items is None:
        raise InvalidParameter(f"{name} must be a list, got {shown(values)}", name)
    if max_count is not None and len(items) > max_count:
        raise InvalidParameter(f"{name} must hold at most {max_count} items, got {len(items)}", name)
    return items


def _token_ids(name: str, values: object, max_count: int | None = None) -> tuple[int, ...]:
    token_ids = _items(name, values, max_count)
    for token_id in token_ids:
        _check_integer(name, token_id, 0, _MAX_INT32, part="each id in ")
    return token_ids


def _texts(name: str, values: object, max_count: int, *, max_chars: int | None = None) -> tuple[str, ...]:
    texts = _items(name, values, max_count)
    for wrong in (text for text in texts if not isinstance(text, str) or not text):
        raise InvalidParameter(f"{name} must hold non-empty strings only, got {shown(wrong)}", name)
    longest = max(map(len, texts), default=0)
    if max_chars is not None and longest > max_chars:
        raise InvalidParameter(f"{name} must hold strings of at most {max_chars} characters, got {longest}", name)
    return texts


def _sequences(name: str, values: object) -> tuple[tuple[int, ...], ...]:
    items = _items(name, values, MAX_BAD_SEQUENCES)
    sequences = tuple(_token_ids(name, item, MAX_BAD_SEQUENCE_TOKENS) for item in items)
    if not all(sequences):
        raise InvalidParameter(f"{name} must hold sequences of at least one token id, got an empty one", name)
    return sequences


def _biases(name: str, values: object) -> tuple[tuple[int, float], ...]:
    pairs = _items(name, values.items() if isinstance(values, Mapping) else values, MAX_BIASED_TOKENS)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidParameter(f"{name} must map token ids to numbers, got {shown(values)}", name)
    for token_id, bias in pairs:
        _check_integer(name, token_id, 0, _MAX_INT32, part="each id in ")
        _check_number(name, bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS, part="each bias in ")
    return tuple({token_id: float(bias) for token_id, bias in pairs}.items())
