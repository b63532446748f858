"""Outcome of a computed step: tokens that are in the cache now, and rows whose logits were not finite."""

import numpy as np

from rayinfer.engine.plan.step_plan import BoolArray, Int64Array, SampledTokens, StepPlan


def num_computed(plan: StepPlan, sampled: SampledTokens) -> Int64Array:
    """Return how many tokens of each request are computed after a step with drafts: the accepted ones count."""
    assert plan.num_drafts is not None
    num_computed = plan.seq_lens.astype(np.int64) - plan.num_drafts
    if sampled.counts is not None:
        num_computed[plan.samples] += sampled.counts - 1
    return num_computed


def are_nonfinite(plan: StepPlan, sampled: SampledTokens) -> BoolArray:
    """Return the mask of the sampled tokens that are invalid, but not by their grammars."""
    if not sampled.errors:
        return sampled.is_invalid
    return sampled.is_invalid & ~np.isin(plan.rows[plan.samples], list(sampled.errors))
