"""Verification of drafts: each place is sampled as without them, and goes on while the token is the drafted one."""

import logging

import numpy as np
import torch

from rayinfer.decoding.logprobs import LogprobsTensors
from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.step_plan import Int64Array, LogprobsArrays, SampledTokens, StepPlan
from rayinfer.engine.worker.step_results import PendingLogprobs

_logger = logging.getLogger(__name__)


def sample_with_drafts(sampler: Sampler, plan: StepPlan, logits: torch.Tensor) -> SampledTokens:
    """Sample the new tokens of a plan with drafts; `logits` has a line for each request's last token and its drafts.

    The first round samples the place behind every request's last known token. Requests whose new token is their first
    draft have another in the second round, and so on. So penalties, grammars and bad sequences see each token before
    the next is chosen, and places behind a draft that was not chosen are never sampled.
    """
    assert plan.num_drafts is not None
    sampling = np.flatnonzero(plan.samples)
    rows, num_drafts = plan.rows[sampling], plan.num_drafts[sampling].astype(np.int64)
    positions = plan.seq_lens[sampling].astype(np.int64) - num_drafts
    first_lines = np.concatenate(([0], (num_drafts + 1).cumsum()[:-1]))
    drafts = _draft_tokens(plan, sampling, num_drafts)
    tokens = np.zeros((len(rows), drafts.shape[1]), np.int64)
    counts = np.zeros(len(rows), np.int32)
    is_invalid = np.zeros(len(rows), np.bool_)
    logprobs = _RoundLogprobs()
    errors: dict[int, str] = {}
    active = np.arange(len(rows))
    for place in range(drafts.shape[1]):
        lines = torch.from_numpy(first_lines[active] + place)
        try:
            sampled = sampler.sample(logits[lines], rows[active], positions[active] + place, batch_rows=rows)
        except Exception:
            if place == 0:  # nothing is recorded yet: the engine computes the step again
                raise
            # What is sampled is right and recorded; the request at fault fails by itself in the next step.
            _logger.warning("drafts are dropped: place %d of step %d failed", place, plan.step, exc_info=True)
            break
        token_ids = sampled.token_ids.cpu().numpy()
        tokens[active, place] = token_ids
        counts[active] += 1
        is_invalid[active] = sampled.is_invalid.cpu().numpy()
        errors |= sampled.errors or {}
        if sampled.logprobs is not None:
            scored = active[sampled.scored_lines]
            logprobs.add(scored, rows[scored], positions[scored] + place, sampled.logprobs)
        active = active[(token_ids == drafts[active, place]) & ~is_invalid[active]]
        if not len(active):
            break
    is_sampled = np.arange(tokens.shape[1]) < counts[:, np.newaxis]
    return SampledTokens(tokens[is_sampled], is_invalid, logprobs.by_request(), None, errors or None, counts)


def _draft_tokens(plan: StepPlan, sampling: Int64Array, num_drafts: Int64Array) -> Int64Array:
    """Return the drafts of the requests `sampling`, [requests, most drafts + 1], padded with -1, which none chooses."""
    places = np.arange(num_drafts.max(initial=0) + 1)
    ends = plan.cu_seqlens_q[1:][sampling].astype(np.int64)
    indices = np.minimum((ends - num_drafts)[:, np.newaxis] + places, plan.num_tokens - 1)
    drafts: Int64Array = np.where(places < num_drafts[:, np.newaxis], plan.token_ids[indices], -1).astype(np.int64)
    return drafts


class _RoundLogprobs:
    """Logprobs of the tokens of all rounds."""

    def __init__(self) -> None:
        self._requests: list[Int64Array] = []
        self._rows: list[Int64Array] = []
        self._positions: list[Int64Array] = []
        self._parts: list[LogprobsTensors] = []

    def add(self, requests: Int64Array, rows: Int64Array, positions: Int64Array, part: LogprobsTensors) -> None:
        """Add those of a round: of these requests of the plan, in these rows."""
        self._requests.append(requests)
        self._rows.append(rows)
        self._positions.append(positions)
        self._parts.append(part)

    def by_request(self) -> LogprobsArrays | None:
        """Return all of them, one request's together and in order."""
        if not self._parts:
            return None
        rows, positions = np.concatenate(self._rows), np.concatenate(self._positions)
        arrays = PendingLogprobs(rows, positions, self._parts).result()
        order = np.argsort(np.concatenate(self._requests), kind="stable")
        return LogprobsArrays(
            rows=arrays.rows[order],
            positions=arrays.positions[order],
            token_ids=arrays.token_ids[order],
            logprobs=arrays.logprobs[order],
            ranks=arrays.ranks[order],
        )
