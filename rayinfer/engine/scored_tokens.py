"""Turns the scores of tokens from arrays into what callers read: a dict per place."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from rayinfer.engine.step_plan import ScoredTokens
from rayinfer.outputs import Logprob, TokenLogprobs


def logprobs_by_row(scored: ScoredTokens | None, num_top: Callable[[int], int]) -> dict[int, list[TokenLogprobs]]:
    """Group scores by row, in order of position; `num_top` is how many likely tokens a row asked for.

    It is a request's `logprobs` for new tokens and its `prompt_logprobs` for those of the prompt.
    """
    if scored is None or not len(scored.rows):
        return {}
    starts = np.concatenate(([0], np.flatnonzero(np.diff(scored.rows)) + 1, [len(scored.rows)])).tolist()
    logprobs: dict[int, list[TokenLogprobs]] = {}
    for start, end in pairwise(starts):
        row = int(scored.rows[start])
        width = 1 + num_top(row)
        places = zip(
            scored.token_ids[start:end, :width].tolist(),
            scored.logprobs[start:end, :width].tolist(),
            scored.ranks[start:end].tolist(),
            strict=True,
        )
        logprobs[row] = [_place(*place) for place in places]
    return logprobs


def _place(token_ids: list[int], logprobs: list[float], rank: int) -> TokenLogprobs:
    place = {token_ids[0]: Logprob(logprobs[0], rank)}
    for index in range(1, len(token_ids)):
        place.setdefault(token_ids[index], Logprob(logprobs[index], index))
    return place
