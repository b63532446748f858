"""Runs one step of the model in this process: arrays in, sampled tokens out."""

from dataclasses import replace

import numpy as np
import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.decoding.sampler import Sampled, Sampler
from rayinfer.engine.pipeline_link import ONLY_STAGE, Stage
from rayinfer.engine.prompt_scorer import PromptScorer
from rayinfer.engine.scored_tokens import on_host
from rayinfer.engine.step_plan import EnteredRow, Int64Array, SampledTokens, ScoredTokens, StepPlan
from rayinfer.models.decoder import Decoder

NO_TOKENS = SampledTokens(np.empty(0, np.int64), np.empty(0, np.bool_))


class FinishedStep:
    """The handle of a step that ran while it was submitted."""

    def __init__(self, sampled: SampledTokens) -> None:
        self._sampled = sampled

    def result(self) -> SampledTokens:
        """The step's tokens."""
        return self._sampled


class ModelRunner:
    """Computes one step after the other in the caller's thread; `decoder` is None while its memory is given back.

    Where a model has several ranks, each computes its stage's part, and all but one return no tokens.
    """

    def __init__(self, decoder: Decoder, sampler: Sampler, device: torch.device, stage: Stage = ONLY_STAGE) -> None:
        self.decoder: Decoder | None = decoder
        self._sampler = sampler
        self._prompt_scorer = PromptScorer(sampler.vocab_size)
        self._device = device
        self._stage = stage

    def submit(self, plan: StepPlan) -> FinishedStep:
        """Compute the step now."""
        for entered in plan.entered:
            self._enter(entered)
        with torch.inference_mode():
            return FinishedStep(self._run(plan))

    def _enter(self, entered: EnteredRow) -> None:
        if self._stage.place.is_last_stage:
            self._prompt_scorer.enter(entered)
        if self._stage.samples:
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
        hidden = self._hidden(decoder, plan, batch)
        if not self._stage.place.is_last_stage:
            return NO_TOKENS
        # Before sampling, for what fails here is tried again, and a sampler must not remember a token twice.
        prompt_logprobs = self._prompt_scorer.score(plan, hidden, decoder.logits)
        sampling = np.flatnonzero(plan.samples)
        if not len(sampling):
            return replace(NO_TOKENS, prompt_logprobs=prompt_logprobs)
        if len(sampling) < len(plan.token_ids):  # else each row has one token, and all are sampled
            hidden = hidden[self._tensor(plan.query_starts[1:][sampling] - 1)]
        logits = decoder.logits(hidden)  # by all ranks of the stage together, whoever samples
        if not self._stage.samples:
            return NO_TOKENS
        rows, positions = plan.rows[sampling], plan.context_lengths[sampling].astype(np.int64)
        sampled = self._sampler.sample(logits, rows, positions)
        return SampledTokens(
            sampled.token_ids.cpu().numpy(),
            sampled.is_invalid.cpu().numpy(),
            _logprobs(sampled, rows, positions),
            prompt_logprobs,
        )

    def _hidden(self, decoder: Decoder, plan: StepPlan, batch: AttentionBatch) -> torch.Tensor:
        """Compute this stage's layers: [num_tokens, hidden_size], which the next stage, if any, has been sent."""
        place, link = self._stage.place, self._stage.link
        token_ids = self._tensor(plan.token_ids)
        if link is None:
            return decoder.forward(token_ids, batch)
        received = None if place.is_first_stage else link.receive(plan.num_tokens)
        hidden = decoder.forward(token_ids, batch, received)
        if not place.is_last_stage:
            link.pass_on(hidden)
        return hidden

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def _logprobs(sampled: Sampled, rows: Int64Array, positions: Int64Array) -> ScoredTokens | None:
    if sampled.scores is None:
        return None
    return on_host(rows[sampled.scored], positions[sampled.scored], [sampled.scores])
