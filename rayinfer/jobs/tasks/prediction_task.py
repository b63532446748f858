"""Predictions: embeddings, classes and relevance of rows, by models that do not generate."""

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rayinfer.errors import BadImage, ConfigError, InvalidParameter, PromptTooLong, shown
from rayinfer.jobs.interfaces import JobError
from rayinfer.jobs.providers import JobContext, RowOutput, SeededRow
from rayinfer.jobs.sources.input_files import read_small_file
from rayinfer.jobs.tasks.engine_model import LoadedEngine
from rayinfer.jobs.tasks.engine_task import EngineTask, usage
from rayinfer.jobs.tasks.engine_thread import EngineJob, EngineProgress
from rayinfer.jobs.tasks.row_inputs import DEFAULT_INPUTS, InputSettings, check_endpoint, openai_body, read_input
from rayinfer.prediction_outputs import embedding, label_scores, relevance
from rayinfer.predictions import PredictionInput, PredictionOutput, PredictionTask, PredictorDescription
from rayinfer.protocols import EngineRequestId, GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.truncation import Truncation

IMAGE_COLUMNS = ("image", "path", "input", "inputs")
_BASE64_IMAGES = ("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR")  # JPEG, PNG, GIF and WebP
PAIR_COLUMNS = (("query", "document"), ("text", "text_pair"), ("text_1", "text_2"))
_Item = tuple[list[int], PredictionInput]  # tokens, and what is computed of them
Reader = Callable[[PredictionOutput, PredictorDescription], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionTaskProvider:
    """TaskProvider of predictions; by default the model's first task, with all labels of a classifier."""

    inputs: InputSettings = DEFAULT_INPUTS
    task: PredictionTask | None = None
    top_k: int | None = None  # labels of a classifier, the best first
    dimensions: int | None = None  # to which embeddings are cut
    truncates: bool = True  # texts that are too long; else they are errors

    def __call__(self, context: JobContext) -> "PredictionTaskOnEngine":
        """Make the task; raises ConfigError."""
        if self.task not in (None, *READERS):
            raise ConfigError(f"task must be one of {', '.join(READERS)}, got {shown(self.task)}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")
        if self.inputs.is_chat or self.inputs.system is not None:
            raise ConfigError("chat and system are for models that generate")
        return PredictionTaskOnEngine(self)


@dataclass(frozen=True, slots=True)
class _RowState:
    """Row in the engine: one item, or several of a list of texts."""

    num_tokens: int
    is_list: bool
    values: list[Any]  # None until an item has ended
    ended: set[int] = field(default_factory=set)


class PredictionTaskOnEngine(EngineTask):
    """Rows are texts, pairs of texts or images; outputs are numbers, and of a list of texts a list of them."""

    def __init__(self, settings: PredictionTaskProvider) -> None:
        super().__init__(settings.inputs)
        self._settings = settings
        self._task: PredictionTask = settings.task or "embed"
        self._rows: dict[str, _RowState] = {}  # by request id, without the item

    @property
    def output_columns(self) -> tuple[str, ...]:
        """The task's column, and usage."""
        return (OUTPUT_COLUMNS[self._task], "usage")

    def prepare(self, model: LoadedEngine) -> None:
        """Choose the task; raises ConfigError for one that the model does not do."""
        description = _predictor(model)
        known: list[PredictionTask] = [task for task in description.tasks if task in READERS]
        if not known or self._settings.task not in (None, *known):
            raise ConfigError(f"task {self._settings.task!r}: this model does {', '.join(description.tasks)}")
        self._task = self._settings.task or known[0]

    def make_jobs(self, row: SeededRow) -> list[EngineJob]:
        """Return the row's items."""
        data, description = row.row.data, _predictor(self.model)
        check_endpoint(data, ENDPOINTS[self._task])
        is_list = False
        items: list[_Item]
        if description.image_size:
            image = self._image(data)
            items = [([], PredictionInput(task=self._task, image=image, cost=description.image_cost))]
        elif self._task == "score":
            items = [self._pair_item(data)]
        else:
            value = read_input(data, self.inputs)
            is_list = isinstance(value, list)
            items = [self._text_item(text, description) for text in (value if is_list else [value])]
            if not items:
                raise InvalidParameter("the input must hold at least one text", "input")
        requests = [
            GenerationRequest(
                request_id=str(EngineRequestId(str(row.row.index), number)),
                prompt_token_ids=token_ids,
                sampling_params=SamplingParams(),
                prediction=prediction,
            )
            for number, (token_ids, prediction) in enumerate(items)
        ]
        num_tokens = sum(request.num_input_tokens for request in requests)
        self._rows[str(row.row.index)] = _RowState(num_tokens, is_list, [None] * len(items))
        return [EngineJob(request) for request in requests]

    def read_progress(self, progress: EngineProgress) -> RowOutput | None:
        """Read the numbers of an item; returns the row's output with those of its last one."""
        name, number, _ = EngineRequestId.parse(progress.request_id)
        state = self._rows.get(name)
        if state is None:  # another item of the row has failed
            return None
        prediction = None if progress.error is not None else progress.deltas[-1].prediction
        if prediction is None or prediction.error:
            del self._rows[name]
            self.thread.abort([str(EngineRequestId(name, each)) for each in range(len(state.values))])
            error = progress.error or (prediction.error if prediction else "the engine gave no output")
            return RowOutput(index=int(name), error=error)
        state.values[number] = READERS[self._task](prediction, _predictor(self.model), self._settings)
        state.ended.add(number)
        if len(state.ended) < len(state.values):
            return None
        del self._rows[name]
        value = state.values if state.is_list else state.values[0]
        columns = {OUTPUT_COLUMNS[self._task]: value, "usage": usage(state.num_tokens, 0)}
        return RowOutput(index=int(name), columns=columns, prompt_tokens=state.num_tokens)

    def _text_item(self, text: Any, description: PredictorDescription) -> _Item:
        if not isinstance(text, str):
            raise InvalidParameter(f"the input must be a text or a list of texts, got {shown(text)}", "input")
        prompt = description.prompts.get(description.default_prompt_name, "") if self._task == "embed" else ""
        token_ids = self.model.tokenizer.encode(prompt + text, truncation=self._truncation)
        return self._checked(token_ids), PredictionInput(task=self._task)

    def _pair_item(self, data: Mapping[str, Any]) -> _Item:
        pair = self.model.tokenizer.encode_pair(*_pair(data, self.inputs), truncation=self._truncation)
        prediction = PredictionInput(task=self._task, num_first_tokens=pair.num_first_tokens)
        return self._checked(pair.token_ids), prediction

    @property
    def _truncation(self) -> Truncation | None:
        limit = self.model.engine.description.max_model_len
        return Truncation(limit, "right") if self._settings.truncates else None

    def _checked(self, token_ids: list[int]) -> list[int]:
        limit = self.model.engine.description.max_model_len
        if len(token_ids) > limit:
            raise PromptTooLong(f"the input has {len(token_ids)} tokens, more than the model's {limit}", "input")
        return token_ids

    def _image(self, data: Mapping[str, Any]) -> bytes:
        names = (self.inputs.column,) if self.inputs.column else IMAGE_COLUMNS
        value = next((data[name] for name in names if data.get(name) is not None), None)
        if isinstance(value, Mapping):  # of Hugging Face's data sets
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            raise InvalidParameter(f"the row has no image, a path or base64 in one of {', '.join(names)}", "image")
        try:
            if value.startswith("data:"):
                return b64decode(value.partition(",")[2], validate=True)
            if value.startswith(_BASE64_IMAGES):
                return b64decode(value, validate=True)
            if (content := read_small_file(value)) is None:
                raise BadImage(f"there is no image {value[:200]!r}", "image")
            return content
        except (OSError, binascii.Error, JobError) as error:
            raise BadImage(f"the image {value[:80]!r} cannot be read: {error}", "image") from None


def _pair(data: Mapping[str, Any], inputs: InputSettings) -> tuple[str, str]:
    data = openai_body(data) or data
    for first, second in PAIR_COLUMNS:
        if isinstance(data.get(first), str) and isinstance(data.get(second), str):
            return data[first], data[second]
    value = read_input(data, inputs)
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return value[0], value[1]
    columns = " or ".join(f"{first} and {second}" for first, second in PAIR_COLUMNS)
    raise InvalidParameter(f"the row has no pair of texts: columns {columns}, or a list of two", "input")


def _predictor(model: LoadedEngine) -> PredictorDescription:
    description = model.engine.description
    if description.predictor is None:
        raise ConfigError(f"the model {description.name!r} generates text, and is no predictor")
    return description.predictor


def _embed(output: PredictionOutput, description: PredictorDescription, settings: PredictionTaskProvider) -> Any:
    return embedding(output, description, settings.dimensions).tolist()


def _classify(output: PredictionOutput, description: PredictorDescription, settings: PredictionTaskProvider) -> Any:
    return [each._asdict() for each in label_scores(output, description, top_k=settings.top_k)]


def _score(output: PredictionOutput, description: PredictorDescription, settings: PredictionTaskProvider) -> Any:
    return relevance(output, description)


READERS: dict[str, Callable[[PredictionOutput, PredictorDescription, PredictionTaskProvider], Any]] = {
    "embed": _embed,
    "classify": _classify,
    "score": _score,
}
ENDPOINTS: dict[str, dict[str, str]] = {  # of batch lines, and their inputs
    "embed": {"/v1/embeddings": "input"},
    "classify": {"/v1/classify": "input"},
    "score": {"/v1/score": "text_1"},
}
OUTPUT_COLUMNS = {"embed": "embedding", "classify": "labels", "score": "score"}
