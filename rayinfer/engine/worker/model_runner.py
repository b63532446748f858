"""Model runner: computes a step on one rank, from a plan's arrays to sampled tokens.

Nothing here waits for a GPU: `submit` starts its work, and the step's handle waits for the tokens.
"""

from collections.abc import Callable

import numpy as np
import torch
from msgspec import structs

from rayinfer.adapters.adapter_memory import AdapterMemory
from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.executor import StepHandle
from rayinfer.engine.plan.step_plan import NewRequestData, StepPlan
from rayinfer.engine.ranks.pipeline_link import ONLY_STAGE, Stage
from rayinfer.engine.worker.draft_verification import sample_with_drafts
from rayinfer.engine.worker.graphs.decode_graphs import DecodeGraphs
from rayinfer.engine.worker.images.row_images import RowImages, StepImages
from rayinfer.engine.worker.images.row_positions import RowPositions
from rayinfer.engine.worker.prompt_scorer import PromptScorer
from rayinfer.engine.worker.step_inputs import FutureTokens, StepInputs, upload_plan
from rayinfer.engine.worker.step_results import NO_TOKENS, FinishedStep, HostCopies, PendingLogprobs, PendingSample
from rayinfer.engine.worker.step_upload import HostTensors, StepUpload, Upload
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.decoder import Decoder
from rayinfer_kernels import ops


class ModelRunner:
    """Computes steps one after the other in the caller's thread; `decoder` is None while its memory is released.

    In a group of ranks, each computes its shard, and all but one return no tokens.
    """

    def __init__(self, decoder: Decoder, sampler: Sampler, device: torch.device, stage: Stage = ONLY_STAGE) -> None:
        self.decoder: Decoder | None = decoder
        self._sampler = sampler
        self._prompt_scorer = PromptScorer(sampler.vocab_size)
        self._device = device
        self._upload: Upload = HostTensors() if device.type == "cpu" else StepUpload(device)
        self._graphs: DecodeGraphs | None = None
        self._row_images, self._row_positions = RowImages(), RowPositions()
        self.future_tokens = FutureTokens(sampler.num_rows + 1, device)  # one more for padding
        self._no_tokens = [torch.zeros(0, dtype=dtype) for dtype in (torch.int64, torch.bool)]
        self._stage = stage
        self.adapters: AdapterMemory | None = None  # where requests may have some
        self._slot_of_row = np.full(sampler.num_rows + 1, -1, np.int32)  # of its adapter; -1: it has none
        # Called with each step, and what the decoder has kept of it for an EAGLE head.
        self.on_states: Callable[[StepPlan, torch.Tensor], None] | None = None

    @property
    def num_rows(self) -> int:
        """Rows that its sampler has."""
        return self._sampler.num_rows

    @property
    def vocab_size(self) -> int:
        """Tokens that its sampler chooses from."""
        return self._sampler.vocab_size

    def record(self, graphs: DecodeGraphs) -> None:
        """Run decode steps as graphs from now on; the model's caches must be bound."""
        self._graphs = graphs
        self.recapture()

    def recapture(self) -> None:
        """Capture the graphs again, if there were some."""
        if self._graphs is not None:
            with torch.inference_mode():
                self._graphs.capture(self._logits)

    def drop_graphs(self) -> None:
        """Drop the graphs until they are captured again: weights or caches are about to move."""
        if self._graphs is not None:
            self._graphs.drop()

    def submit(self, plan: StepPlan) -> StepHandle:
        """Compute the step, or on a GPU start it; raises errors that are known by then."""
        if plan.emptied_adapter_slots:
            assert self.adapters is not None, "an engine without adapters"
            assert self.decoder is not None, "a step without a model"
            self.adapters.empty_slots(self.decoder, plan.emptied_adapter_slots)
        for new_request in plan.new_requests:
            self._add_row(new_request)
        with torch.inference_mode():
            return self._run(plan)

    def _add_row(self, new_request: NewRequestData) -> None:
        if self._stage.coordinates.is_first_stage:
            self._row_images.add_row(new_request)
        self._row_positions.add_row(new_request)
        self._slot_of_row[new_request.row] = -1
        if new_request.adapter is not None and new_request.adapter_slot is not None:
            assert self.adapters is not None, "an engine without adapters"
            assert self.decoder is not None, "a step without a model"
            self.adapters.fill_slot(self.decoder, new_request.adapter_slot, new_request.adapter)
            self._slot_of_row[new_request.row] = new_request.adapter_slot
        if self._stage.coordinates.is_last_stage:
            self._prompt_scorer.add_row(new_request)
        if self._stage.samples:
            self._sampler.add_row(
                new_request.row,
                new_request.params,
                seed=new_request.seed,
                choice=new_request.choice,
                prompt_token_ids=new_request.prompt_token_ids,
                output_token_ids=new_request.output_token_ids,
                end_token_ids=new_request.end_token_ids,
                last_position=new_request.last_position,
            )

    def _run(self, plan: StepPlan) -> StepHandle:
        decoder = self.decoder
        assert decoder is not None, "a step without a model"
        images, adapters = self._row_images.in_step(plan), self._token_slots(plan)
        scores_prompts = self._prompt_scorer.scores(plan)
        needs_no_more = images is None and adapters is None and not scores_prompts
        placed = self._placed(decoder, plan)
        if self._graphs is not None and self._graphs.fits(plan) and needs_no_more:
            return self._replay(self._graphs, placed)
        inputs = upload_plan(placed, self._upload, adapters, returns_all=scores_prompts)
        hidden = self._hidden(decoder, plan, inputs, images)
        if self.on_states is not None and isinstance(decoder, CausalDecoder) and decoder.states_read is not None:
            self.on_states(plan, decoder.states_read)
        if not self._stage.coordinates.is_last_stage:
            return FinishedStep(NO_TOKENS)
        # Before sampling: a step that fails here is computed again, and a sampler must not record a token twice.
        prompt_logprobs = self._prompt_scorer.score(plan, hidden, decoder.logits)
        if not plan.samples.any():
            return PendingSample(HostCopies(self._no_tokens), 0, prompt_logprobs=prompt_logprobs)
        if inputs.sampled_lines is not None and inputs.batch.outputs is None:
            hidden = hidden[inputs.sampled_lines]
        logits = decoder.logits(hidden)  # computed by all ranks of the stage
        if not self._stage.samples:
            return FinishedStep(NO_TOKENS)
        if plan.num_drafts is not None:
            sampled = sample_with_drafts(self._sampler, plan, logits)
            if plan.uses_last_sampled is not None:
                last_token_ids = torch.from_numpy(sampled.last_token_ids).to(self._device)
                self.future_tokens.keep(inputs.sampled_rows, last_token_ids)
            if prompt_logprobs is not None:
                sampled = structs.replace(sampled, prompt_logprobs=prompt_logprobs.result())
            return FinishedStep(sampled)
        return self._sample(plan, logits, inputs.sampled_rows, prompt_logprobs)

    def _placed(self, decoder: Decoder, plan: StepPlan) -> StepPlan:
        """Return the step with positions as the decoder looks them up, which those of images differ from."""
        if not self._row_positions.are_changed:
            return plan
        assert isinstance(decoder, CausalDecoder), "images without a model that reads them"
        positions = self._row_positions.in_step(plan, decoder.num_positions)
        if positions is None:
            return plan
        if positions.spare.shape[1]:
            decoder.fill_positions(torch.from_numpy(positions.spare).to(self._device))
        return structs.replace(plan, positions=positions.by_token)

    def _token_slots(self, plan: StepPlan) -> ops.TokenSlots | None:
        """Return the slots of the tokens' adapters; None where no request of the step has one."""
        slots = self._slot_of_row[plan.rows]
        if (slots < 0).all():
            return None
        return ops.TokenSlots(np.repeat(slots, np.diff(plan.cu_seqlens_q)), self._device)

    def _replay(self, graphs: DecodeGraphs, plan: StepPlan) -> PendingSample:
        """Replay a step's graph, and sample after it what the graph cannot."""
        settings = None
        if graphs.draw is not None:
            settings = self._sampler.plain_settings(plan.rows, plan.seq_lens)
        outputs = graphs.run(plan, settings)
        if settings is not None:
            return PendingSample(outputs.tokens.copies(), plan.num_requests)
        return self._sample(plan, outputs.logits, outputs.rows, None)

    def _logits(self, inputs: StepInputs) -> torch.Tensor:
        """Return the logits of a step in which every request has one token and samples."""
        assert self.decoder is not None, "a step without a model"
        return self.decoder.logits(self.decoder.forward(self.future_tokens.resolve(inputs), inputs.batch))

    def _sample(
        self, plan: StepPlan, logits: torch.Tensor, sampled_rows: torch.Tensor, prompt_logprobs: PendingLogprobs | None
    ) -> PendingSample:
        rows, positions = plan.rows[plan.samples], plan.seq_lens[plan.samples].astype(np.int64)
        sampled = self._sampler.sample(logits, rows, positions)
        if plan.uses_last_sampled is not None:  # else each step's tokens are known before the next one is planned
            self.future_tokens.keep(sampled_rows, sampled.token_ids)
        logprobs = None
        if sampled.logprobs is not None:
            logprobs = PendingLogprobs(rows[sampled.scored_lines], positions[sampled.scored_lines], [sampled.logprobs])
        copies = HostCopies([sampled.token_ids, sampled.is_invalid])
        return PendingSample(copies, len(rows), logprobs, prompt_logprobs, sampled.errors)

    def _embedded(
        self, decoder: Decoder, token_ids: torch.Tensor, inputs: StepInputs, images: StepImages
    ) -> torch.Tensor:
        """Embed a step's tokens, and put images' embeddings in their places: [num_tokens, hidden_size]."""
        assert isinstance(decoder, CausalDecoder), "images without a model that reads them"
        embedded = decoder.embed(token_ids, inputs.batch)
        values = torch.from_numpy(images.embeddings).to(self._device, embedded.dtype)
        embedded[torch.from_numpy(images.lines).to(self._device)] = values
        return embedded

    def _hidden(self, decoder: Decoder, plan: StepPlan, inputs: StepInputs, images: StepImages | None) -> torch.Tensor:
        """Compute this stage's layers, and send the result on, if a stage follows; the last one's is of the outputs."""
        place, link = self._stage.coordinates, self._stage.link
        token_ids = self.future_tokens.resolve(inputs)
        received = None if images is None else self._embedded(decoder, token_ids, inputs, images)
        if link is None:
            return decoder.forward(token_ids, inputs.batch, received)
        if not place.is_first_stage:
            received = link.receive(plan.num_tokens)
        hidden = decoder.forward(token_ids, inputs.batch, received)
        if not place.is_last_stage:
            link.send_next(hidden)
        return hidden
