"""Runs one step of the model in this process: arrays in, sampled tokens out."""

import numpy as np
import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.decoding.sampler import Sampled, Sampler
from rayinfer.engine.prompt_scorer import PromptScorer
from rayinfer.engine.scored_tokens import on_host
from rayinfer.engine.step_plan import Int64Array, SampledTokens, ScoredTokens, StepPlan
from rayinfer.models.decoder import Decoder


class FinishedStep:
    """The handle of a step that ran while it was submitted."""

    def __init__(self, sampled: SampledTokens) -> None:
        self._sampled = sampled

    def result(self) -> SampledTokens:
        """The step's tokens."""
        return self._sampled


class ModelRunner:
    """Computes one step after the other in the caller's thread; `decoder` is None while its memory is given back."""

    def __init__(self, decoder: Decoder, sampler: Sampler, device: torch.device) -> None:
        self.decoder: Decoder | None = decoder
        self._sampler = sampler
        self._prompt_scorer = PromptScorer(sampler.vocab_size)
        self._device = device

    def submit(self, plan: StepPlan) -> FinishedStep:
        """Compute the step now."""
        for entered in plan.entered:
            self._sampler.enter(
                entered.row,
                entered.params,
                seed=entered.seed,
                choice=entered.choice,
                prompt_token_ids=entered.prompt_token_ids,
                output_token_ids=entered.output_token_ids,
                end_token_ids=entered.end_token_ids,
                last_position=entered.last_position,
            )
            self._prompt_scorer.enter(entered)
        with torch.inference_mode():
            return FinishedStep(self._run(plan))

    def _run(self, plan: StepPlan) -> SampledTokens:
        batch = AttentionBatch(
            positions=self._tensor(plan.positions),
            slots=self._tensor(plan.slots),
            query_starts=self._tensor(plan.query_starts),
            context_lengths=self._tensor(plan.context_lengths),
            block_tables=self._tensor(plan.block_tables),
            rows=self._tensor(plan.rows),
        )
        decoder = self.decoder
        assert decoder is not None, "a step without a model"
        hidden = decoder.forward(self._tensor(plan.token_ids), batch)
        # Before sampling, for what fails here is tried again, and a sampler must not remember a token twice.
        prompt_logprobs = self._prompt_scorer.score(plan, hidden, decoder.logits)
        sampling = np.flatnonzero(plan.samples)
        if not len(sampling):
            return SampledTokens(np.empty(0, np.int64), np.empty(0, np.bool_), None, prompt_logprobs)
        if len(sampling) < len(plan.token_ids):  # else each row has one token, and all are sampled
            hidden = hidden[self._tensor(plan.query_starts[1:][sampling] - 1)]
        logits = decoder.logits(hidden)
        rows, positions = plan.rows[sampling], plan.context_lengths[sampling].astype(np.int64)
        sampled = self._sampler.sample(logits, rows, positions)
        return SampledTokens(
            sampled.token_ids.cpu().numpy(),
            sampled.is_invalid.cpu().numpy(),
            _logprobs(sampled, rows, positions),
            prompt_logprobs,
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def _logprobs(sampled: Sampled, rows: Int64Array, positions: Int64Array) -> ScoredTokens | None:
    if sampled.scores is None:
        return None
    return on_host(rows[sampled.scored], positions[sampled.scored], [sampled.scores])
