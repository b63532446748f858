"""Beam search over log probabilities from an engine.

The algorithm is that of transformers (`GenerationMixin` with `num_beams`), with the same names where vLLM has none.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rayinfer.errors import InvalidParameter, shown
from rayinfer.outputs import TokenLogprobs

MAX_BEAM_WIDTH = 512
MAX_STOP_TOKENS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamSearchParams:
    """Settings of a beam search; raises InvalidParameter."""

    beam_width: int = 4  # sequences that are kept at each step, and returned
    max_tokens: int = 16
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    length_penalty: float = 1.0  # a sequence's score is its log probability / num_tokens ** length_penalty
    early_stopping: bool | str = False
    """When to stop: True with `beam_width` ended sequences; False when, at its present length, no sequence can become
    better than those; "never" when it could not at any length."""
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_integer("beam_width", self.beam_width, MAX_BEAM_WIDTH)
        _check_integer("max_tokens", self.max_tokens, 2**31 - 1)
        is_number = isinstance(self.length_penalty, int | float) and not isinstance(self.length_penalty, bool)
        if not is_number or not -10.0 <= self.length_penalty <= 10.0:
            given = shown(self.length_penalty)
            raise InvalidParameter(f"length_penalty must be a number from -10 to 10, got {given}", "length_penalty")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            given = shown(self.early_stopping)
            raise InvalidParameter(f'early_stopping must be true, false or "never", got {given}', "early_stopping")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            num = len(self.stop_token_ids)
            raise InvalidParameter(
                f"stop_token_ids: beam search takes at most {MAX_STOP_TOKENS}, got {num}", "stop_token_ids"
            )


@dataclass(frozen=True, slots=True)
class Beam:
    """A sequence of generated tokens."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, with that of its rivals
    cumulative_logprob: float = 0.0
    score: float = 0.0  # with the length penalty, once it has ended
    stop_token: int | None = None  # its last token, where that ended it

    def extended(self, token_id: int, logprobs: TokenLogprobs) -> "Beam":
        """Return the sequence with one more token."""
        total = self.cumulative_logprob + logprobs[token_id].logprob
        own_first = {token_id: logprobs[token_id], **logprobs}
        return Beam((*self.token_ids, token_id), (*self.logprobs, own_first), total)

    def ended(self, length_penalty: float, stop_token: int | None) -> "Beam":
        """Return the sequence with its score."""
        score = self.cumulative_logprob / len(self.token_ids) ** length_penalty
        return Beam(self.token_ids, self.logprobs, self.cumulative_logprob, score, stop_token)


class BeamSearch:
    """One prompt's search: whoever computes asks for `running`, and gives the most likely next tokens of each.

    Equal candidates are ordered by their sequence, then by their token id, so that the result depends on the numbers
    alone.
    """

    def __init__(
        self, params: BeamSearchParams, eos_token_ids: Collection[int], *, max_tokens: int | None = None
    ) -> None:
        self._params = params
        self._max_tokens = params.max_tokens if max_tokens is None else min(params.max_tokens, max_tokens)
        self._ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_token_ids))
        self._finished: list[Beam] = []
        self.running: list[Beam] = [Beam()]

    @property
    def num_candidates(self) -> int:
        """How many next tokens of each sequence may be needed: each that ends it may be before `beam_width` others."""
        return self._params.beam_width + len(self._ends)

    @property
    def best(self) -> list[Beam]:
        """The ended sequences, `beam_width` at most, the one with the highest score first."""
        return list(self._finished)

    def advance(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Extend the running sequences.

        `logprobs` has the `num_candidates` most likely next tokens of each, in the order of `running`, or all of a
        smaller vocabulary.
        """
        candidates = self._candidates(logprobs)
        is_last = len(self.running[0].token_ids) + 1 == self._max_tokens
        running: list[Beam] = []
        ended: list[Beam] = []
        for rank, beam in enumerate(candidates):
            is_stopped = beam.token_ids[-1] in self._ends
            if not is_stopped and not is_last:
                running.append(beam)
            elif rank < self._params.beam_width:  # the others only stand in for those that end
                stop_token = beam.token_ids[-1] if is_stopped else None
                ended.append(beam.ended(self._params.length_penalty, stop_token))
        self._finished = sorted([*self._finished, *ended], key=lambda each: -each.score)[: self._params.beam_width]
        self.running = running[: self._params.beam_width]
        if self.running and self._is_decided():
            self.running = []

    def _candidates(self, logprobs: Sequence[TokenLogprobs]) -> list[Beam]:
        scored = [
            (-beam.cumulative_logprob - each.logprob, place, token_id)
            for place, (beam, tokens) in enumerate(zip(self.running, logprobs, strict=True))
            for token_id, each in tokens.items()
        ]
        most = self._params.beam_width * (1 + len(self._ends))  # of which at least `beam_width` end no sequence
        best = heapq.nsmallest(max(most, 2 * self._params.beam_width), scored)
        return [self.running[place].extended(token_id, logprobs[place]) for _, place, token_id in best]

    def _is_decided(self) -> bool:
        """Return whether no running sequence can replace an ended one."""
        if len(self._finished) < self._params.beam_width:
            return False
        if self._params.early_stopping is True:
            return True
        length = len(self.running[0].token_ids)
        if self._params.early_stopping == "never" and self._params.length_penalty > 0:
            length = self._max_tokens
        highest = self.running[0].cumulative_logprob / length**self._params.length_penalty
        return bool(highest <= self._finished[-1].score)


def _check_integer(name: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidParameter(f"{name} must be an integer from 1 to {most}, got {shown(value)}", name)
