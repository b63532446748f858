"""Log probabilities for an executor without a model: each depends on all tokens before, and is exact in float32."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayinfer.engine.plan.step_plan import LogprobsArrays
from rayinfer.outputs import Logprob, TokenLogprobs


@dataclass(frozen=True)
class ScoredPlace:
    """A token to be scored: whose it is, where it stands, and what stands before it."""

    row: int
    position: int
    context: Sequence[int]
    token_id: int


def score(places: Sequence[ScoredPlace], num_top: int, vocab_size: int) -> LogprobsArrays | None:
    """Do what a sampler does for these places; every place gets `num_top` likely tokens."""
    if not places:
        return None
    likely = [_likely(place.context, num_top, vocab_size) for place in places]
    own = [_own(place.context, place.token_id) for place in places]
    return LogprobsArrays(
        rows=np.array([place.row for place in places]),
        positions=np.array([place.position for place in places]),
        token_ids=np.array([[place.token_id, *ids] for place, ids in zip(places, likely, strict=True)], np.int32),
        logprobs=np.array([[mine.logprob, *_falling(num_top)] for mine in own], np.float32),
        ranks=np.array([mine.rank for mine in own], np.int32),
    )


def expected_logprobs(context: Sequence[int], token_id: int, num_top: int, vocab_size: int) -> TokenLogprobs:
    """Return what a client should read of a token behind this context."""
    place = {token_id: _own(context, token_id)}
    for rank, (likely, logprob) in enumerate(
        zip(_likely(context, num_top, vocab_size), _falling(num_top), strict=True), 1
    ):
        place.setdefault(likely, Logprob(logprob, rank))
    return place


def _checksum(token_ids: Sequence[int]) -> int:
    return zlib.crc32(np.array(token_ids, np.int32).tobytes())


def _own(context: Sequence[int], token_id: int) -> Logprob:
    checksum = _checksum([*context, token_id])
    return Logprob(-(checksum % 4096) / 8, 1 + checksum % 50)


def _likely(context: Sequence[int], num_top: int, vocab_size: int) -> list[int]:
    first = _checksum(context)
    return [(first + i) % vocab_size for i in range(num_top)]


def _falling(num_top: int) -> list[float]:
    return [-(1 + i) / 8 for i in range(num_top)]
