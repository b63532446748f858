"""Output processing of a step: appends new tokens, finishes requests, and makes their deltas."""

import logging
from collections.abc import Callable

import numpy as np

from rayinfer.engine.plan.step_plan import Int64Array, SampledTokens
from rayinfer.engine.scheduling.batch_table import BatchTable, indices_of
from rayinfer.engine.scheduling.request import Request
from rayinfer.engine.scheduling.step_deltas import add_details, one_token_deltas, several_token_deltas
from rayinfer.outputs import FinishReason, TokenDelta

logger = logging.getLogger(__name__)


class OutputProcessor:
    """Appends sampled tokens to the table; `finish` frees all that a finished request holds."""

    def __init__(
        self,
        table: BatchTable,
        *,
        eos_token_ids: tuple[int, ...],
        forced_end_token_id: int | None,
        finish: Callable[[Request, FinishReason], None],
    ) -> None:
        self._table = table
        self._eos_token_ids = eos_token_ids
        self._forced_end_token_id = forced_end_token_id
        self._finish = finish

    def process(self, rows: Int64Array, sampled: SampledTokens) -> list[TokenDelta]:
        """Append each row's new tokens and finish the requests that end with the last; returns their deltas.

        No other one can end a request: drafts hold no token that could.
        """
        table, token_ids, is_invalid = self._table, sampled.token_ids, sampled.is_invalid
        if sampled.counts is not None:
            deltas = several_token_deltas(table, rows, token_ids, sampled.counts)
            lasts = sampled.counts.cumsum() - 1
            table.append(rows, np.delete(token_ids, lasts[is_invalid]), sampled.counts - is_invalid)
            token_ids = token_ids[lasts]
        else:
            deltas = one_token_deltas(table, rows, token_ids)
            if np.count_nonzero(is_invalid):
                table.append(rows[~is_invalid], token_ids[~is_invalid])
            else:
                table.append(rows, token_ids)
        add_details(deltas, table, rows, sampled)
        ends = table.check_stop(rows, token_ids, self._eos_token_ids)
        is_full = table.num_tokens[rows] >= table.max_total_tokens[rows]
        if self._forced_end_token_id is not None:
            ends &= ~(is_full & (token_ids == self._forced_end_token_id))  # the forced end: not the model's choice
        is_over = ends | is_invalid | is_full
        for i in is_over.nonzero()[0].tolist():
            reason: FinishReason = "error" if is_invalid[i] else "stop" if ends[i] else "length"
            error = sampled.errors.get(int(rows[i])) if sampled.errors else None
            deltas[i] = self._last_delta(table.request_at(rows[i]), deltas[i], reason, error)
        return deltas

    def finish_prompt_only(self, rows: Int64Array) -> list[TokenDelta]:
        """Finish the rows' requests with max_tokens 0 whose prompt is computed; returns their deltas."""
        table = self._table
        deltas = []
        for row in rows[indices_of(table.prompt_only_rows, rows)].tolist():
            request = table.request_at(row)
            if table.num_computed[row] < table.num_tokens[row]:
                continue
            reason: FinishReason = "error" if row in table.nonfinite_rows else "length"
            prompt_logprobs = request.take_prompt_logprobs()
            self._finish(request, reason)
            delta = final_delta(request, reason)
            if reason == "error":
                logger.error("request %s: its prompt logprobs are NaN", request.request_id)
            else:
                delta = delta._replace(prompt_logprobs=prompt_logprobs)
            deltas.append(delta)
        return deltas

    def _last_delta(self, request: Request, delta: TokenDelta, reason: FinishReason, error: str | None) -> TokenDelta:
        self._finish(request, reason)
        token_ids = delta.token_ids
        if reason == "error":
            token_ids = token_ids[:-1]
            cause = error or "its logits are not finite, or its rules leave none"
            logger.log(
                logging.ERROR if error is None else logging.WARNING,
                "request %s: no token to choose: %s",
                request.request_id,
                cause,
            )
        is_stop_id = reason == "stop" and token_ids[-1] in request.params.stop_ids
        return delta._replace(
            token_ids=token_ids,
            finish_reason=reason,
            stop_reason=token_ids[-1] if is_stop_id else None,
            trace=request.trace_events,
            error=error if reason == "error" else None,
        )


def final_delta(request: Request, reason: FinishReason) -> TokenDelta:
    """Make the final delta of a request that finishes without a new token."""
    return TokenDelta(
        request.request_id,
        len(request.token_ids) - request.prompt_len,
        [],
        finish_reason=reason,
        num_cached_tokens=request.num_cached_tokens or 0,
        trace=request.trace_events,
    )
