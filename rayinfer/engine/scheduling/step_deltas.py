"""Token deltas of a step, one per request, vectorised where a request needs nothing special."""

from collections.abc import Callable
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from rayinfer.engine.plan.step_plan import (
    Float32Matrix,
    Int32Array,
    Int32Matrix,
    Int64Array,
    LogprobsArrays,
    SampledTokens,
    StepPlan,
)
from rayinfer.engine.scheduling.batch_table import BatchTable, indices_of
from rayinfer.outputs import Logprob, TokenDelta, TokenLogprobs
from rayinfer.sampling_params import SamplingParams

_NONE = repeat(None)


def one_token_deltas(table: BatchTable, rows: Int64Array, token_ids: Int64Array) -> list[TokenDelta]:
    """Make a delta for each row's new token, not in the table yet, without finish reasons and logprobs."""
    fields = zip(
        table.request_ids[rows].tolist(),
        (table.num_tokens[rows] - table.prompt_lens[rows]).tolist(),
        token_ids[:, np.newaxis].tolist(),
        _NONE,  # logprobs
        _NONE,  # finish_reason
        _NONE,  # stop_reason
        table.num_cached_tokens[rows].tolist(),
        _NONE,  # prompt_logprobs
        _NONE,  # trace
        _NONE,  # prediction
        _NONE,  # error
        strict=False,
    )
    # TokenDelta's own constructor is Python, and takes twice as long.
    return list(map(tuple.__new__, repeat(TokenDelta), fields))


def several_token_deltas(
    table: BatchTable, rows: Int64Array, token_ids: Int64Array, counts: Int32Array
) -> list[TokenDelta]:
    """Make the same of as many tokens for each row as `counts` says, one row's after the other's."""
    ends = counts.cumsum()
    deltas = one_token_deltas(table, rows, token_ids[ends - counts])
    for i in np.flatnonzero(counts > 1).tolist():
        deltas[i] = deltas[i]._replace(token_ids=token_ids[ends[i] - counts[i] : ends[i]].tolist())
    return deltas


def add_details(deltas: list[TokenDelta], table: BatchTable, rows: Int64Array, sampled: SampledTokens) -> None:
    """Add logprobs to the deltas of requests that asked for them, and record first tokens in traces."""
    indices = indices_of(table.rows_with_details, rows)
    if not indices:
        return
    logprobs = logprobs_by_row(sampled.logprobs, lambda row: _wanted_logprobs(table.request_at(row).params))
    for i in indices:
        num_new = len(deltas[i].token_ids) - int(sampled.is_invalid[i])
        if not num_new:
            continue
        request = table.request_at(rows[i])
        known = logprobs.get(int(rows[i]))
        deltas[i] = deltas[i]._replace(
            logprobs=known and known[:num_new], prompt_logprobs=request.take_prompt_logprobs()
        )
        if request.trace is not None and deltas[i].start_pos == request.num_migrated_output_tokens:
            request.trace.record("first_token")
        if not request.wants_logprobs:
            table.rows_with_details.discard(int(rows[i]))  # only its end is still to be traced


def add_prompt_logprobs(table: BatchTable, scored: LogprobsArrays) -> None:
    """Add a step's prompt logprobs to their requests; positions that are known, computed again, are skipped."""
    by_row = logprobs_by_row(scored, lambda row: WantedLogprobs(table.request_at(row).params.prompt_logprobs or 0))
    rows, firsts = np.unique(scored.rows, return_index=True)
    for row, position in zip(rows.tolist(), scored.positions[firsts].tolist(), strict=True):
        known = table.request_at(row).prompt_logprobs
        if known is not None:
            assert position <= len(known), f"row {row}: got position {position}, expected {len(known)}"
            known += by_row[row][len(known) - position :]


def trace_prefill_chunks(table: BatchTable, plan: StepPlan) -> None:
    """Record in traces which part of a prompt, or of tokens computed again, the step has computed."""
    for i in indices_of(table.rows_with_details, plan.rows):
        request = table.request_at(plan.rows[i])
        # While it runs, `request.token_ids` are those that it was admitted with.
        if request.trace is not None and (start := int(plan.positions[plan.cu_seqlens_q[i]])) < len(request.token_ids):
            num_drafts = 0 if plan.num_drafts is None else int(plan.num_drafts[i])
            request.trace.record("prefill_chunk", start=start, end=int(plan.seq_lens[i]) - num_drafts)


class WantedLogprobs(NamedTuple):
    """Columns of logprobs that a request asked for, beside each token's own."""

    num_top: int  # the most likely, in the next columns; negative: every column
    num_listed: int = 0  # of `logprob_token_ids`, in the last columns


def _wanted_logprobs(params: SamplingParams) -> WantedLogprobs:
    return WantedLogprobs(params.logprobs or 0, len(params.listed_ids))


def logprobs_by_row(
    scored: LogprobsArrays | None, wanted: Callable[[int], WantedLogprobs]
) -> dict[int, list[TokenLogprobs]]:
    """Group logprobs by row, in order of position; `wanted` returns what a row asked for."""
    if scored is None or not len(scored.rows):
        return {}
    starts = np.concatenate(([0], np.flatnonzero(np.diff(scored.rows)) + 1, [len(scored.rows)])).tolist()
    logprobs: dict[int, list[TokenLogprobs]] = {}
    for start, end in pairwise(starts):
        row = int(scored.rows[start])
        num_top, num_listed = wanted(row)
        width = 1 + num_top if num_top >= 0 else None
        positions = [
            _token_logprobs(*position)
            for position in zip(
                scored.token_ids[start:end, :width].tolist(),
                scored.logprobs[start:end, :width].tolist(),
                scored.ranks[start:end].tolist(),
                strict=True,
            )
        ]
        if num_listed:
            _add_listed(positions, scored.token_ids[start:end, -num_listed:], scored.logprobs[start:end, -num_listed:])
        logprobs[row] = positions
    return logprobs


def _token_logprobs(token_ids: list[int], logprobs: list[float], rank: int) -> TokenLogprobs:
    by_token = {token_ids[0]: Logprob(logprobs[0], rank)}
    for index in range(1, len(token_ids)):
        by_token.setdefault(token_ids[index], Logprob(logprobs[index], index))
    return by_token


def _add_listed(positions: list[TokenLogprobs], token_ids: Int32Matrix, logprobs: Float32Matrix) -> None:
    for position, ids, values in zip(positions, token_ids.tolist(), logprobs.tolist(), strict=True):
        for token_id, logprob in zip(ids, values, strict=True):
            position.setdefault(token_id, Logprob(logprob, None))
