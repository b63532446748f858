"""Generation: each row's prompt is continued, as `LLM.generate` does."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rayinfer.errors import ConfigError, NotSupported
from rayinfer.jobs.providers import JobContext, RowOutput, SeededRow
from rayinfer.jobs.tasks.engine_model import LoadedEngine
from rayinfer.jobs.tasks.engine_task import EngineTask, usage
from rayinfer.jobs.tasks.engine_thread import EngineJob, EngineProgress
from rayinfer.jobs.tasks.row_inputs import (
    DEFAULT_INPUTS,
    InputSettings,
    check_endpoint,
    read_prompt,
    row_sampling_params,
)
from rayinfer.outputs import CompletionOutput, OutputAggregate, TokenDelta
from rayinfer.protocols import EngineRequestId, GenerationRequest
from rayinfer.routing.stream_state import StreamState
from rayinfer.sampling_params import SamplingParams
from rayinfer.setting_names import nearest_name
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.chat_template import renderer

COLUMNS = ("text", "finish_reason", "usage")
ENDPOINTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}  # of batch lines, and their inputs


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationTaskProvider:
    """TaskProvider of generation; `sampling` has fields of SamplingParams, over the model's defaults."""

    inputs: InputSettings = DEFAULT_INPUTS
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, context: JobContext) -> "GenerationTask":
        """Make the task; raises InvalidParameter and ConfigError for wrong sampling parameters."""
        unknown = sorted(self.sampling.keys() - SamplingParams.__slots__)
        if unknown:
            hint = nearest_name(unknown[0], SamplingParams.__slots__)
            raise ConfigError(f"sampling: unknown names {', '.join(unknown)}{hint}")
        _check_supported(SamplingParams(**self.sampling))
        return GenerationTask(self.inputs, self.sampling)


@dataclass(slots=True)
class _RowState:
    """Row in the engine."""

    row: SeededRow
    stream: StreamState
    outputs: OutputAggregate


class GenerationTask(EngineTask):
    """Rows are prompts, outputs are texts with finish reason and usage; with n > 1, lists of both."""

    def __init__(self, inputs: InputSettings, sampling: Mapping[str, Any]) -> None:
        super().__init__(inputs)
        self._sampling = sampling
        self._defaults = SamplingParams()
        self._rows: dict[str, _RowState] = {}  # by request id

    @property
    def output_columns(self) -> tuple[str, ...]:
        """Text, finish reason and usage."""
        return COLUMNS

    def prepare(self, model: LoadedEngine) -> None:
        """Put the job's sampling parameters over the model's own."""
        description = model.engine.description
        if description.predictor is not None:
            raise ConfigError(f"the model {description.name!r} does not generate")
        self._defaults = replace(SamplingParams(**description.default_sampling_params), **self._sampling)
        if self.inputs.is_chat or self.inputs.system is not None:
            if not model.chat_template.exists:
                raise ConfigError(f"the model {description.name!r} has no chat template: leave chat and system out")
            renderer()

    def make_jobs(self, row: SeededRow) -> list[EngineJob]:
        """Return the row's requests, one for each choice."""
        data = row.row.data
        check_endpoint(data, ENDPOINTS)
        params = row_sampling_params(data, self._defaults)
        _check_supported(params)
        if params.seed is None:
            params = params.with_seed(row.seed)
        description = self.model.engine.description
        params = params.with_tokenized_bad_words(bad_word_tokenizer(self.model.tokenizer))
        params.check_leaves_a_token(
            description.eos_token_ids, description.vocab_size, never_generated=description.bad_token_sequences
        )
        request = GenerationRequest(
            request_id=str(row.row.index), prompt_token_ids=self._token_ids(data), sampling_params=params
        )
        state = _RowState(row, StreamState(request, self.model.tokenizer), OutputAggregate(params.n))
        self._rows[request.request_id] = state
        is_watched = bool(params.stop_strings)
        return [EngineJob(part, is_watched) for part in state.stream.engine_requests()]

    def read_progress(self, progress: EngineProgress) -> RowOutput | None:
        """Turn tokens into text, off the engine's thread; a stop string ends the request there."""
        request_id = EngineRequestId.request_id_of(progress.request_id)
        state = self._rows.get(request_id)
        if state is None:  # ended by a stop string, an abort or a refusal before
            return None
        if progress.error is not None:
            return self._end(request_id, error=progress.error)
        output = state.stream.apply(merged(progress.deltas))
        if output is not None:
            state.outputs.add(output)
        if stopped := state.stream.stopped_request_ids():
            self.thread.abort(stopped)
        return self._end(request_id) if state.stream.is_finished else None

    def _end(self, request_id: str, error: str | None = None) -> RowOutput:
        state = self._rows.pop(request_id)
        index, prompt_tokens = state.row.row.index, len(state.stream.request.prompt_token_ids)
        if error is not None:
            self.thread.abort([part.request_id for part in state.stream.engine_requests()])
            return RowOutput(index=index, error=error)
        choices = state.outputs.whole().outputs
        if any(choice.finish_reason == "error" for choice in choices):
            return RowOutput(index=index, error="the engine could not compute this row")
        output_tokens = state.stream.num_output_tokens
        texts, reasons = [choice.text for choice in choices], [_reason(choice) for choice in choices]
        columns = {
            "text": texts[0] if len(choices) == 1 else texts,
            "finish_reason": reasons[0] if len(choices) == 1 else reasons,
            "usage": usage(prompt_tokens, output_tokens),
        }
        return RowOutput(index=index, columns=columns, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def _token_ids(self, data: Mapping[str, Any]) -> list[int]:
        prompt, tokenizer = read_prompt(data, self.inputs), self.model.tokenizer
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        if isinstance(prompt[0], int):
            return list(prompt)
        text = self.model.chat_template.render(prompt)
        return tokenizer.encode(text, add_special_tokens=False)


def merged(deltas: list[TokenDelta]) -> TokenDelta:
    """Return one delta with the tokens and the end of all, which follow each other."""
    if len(deltas) == 1:
        return deltas[0]
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    return deltas[-1]._replace(start_pos=deltas[0].start_pos, token_ids=token_ids)


def _reason(choice: CompletionOutput) -> str:
    return choice.finish_reason or "abort"


def _check_supported(params: SamplingParams) -> None:
    if params.logprobs is not None or params.prompt_logprobs is not None:
        raise NotSupported("logprobs and prompt_logprobs are not written by jobs", "logprobs")
