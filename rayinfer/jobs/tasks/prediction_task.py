"""Predictions: embeddings, classes and relevance of rows, by models that do not generate."""

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayinfer.errors import BadImage, ConfigError, InvalidParameter, PromptTooLong, shown
from rayinfer.jobs.providers import JobContext, RowOutput, SeededRow
from rayinfer.jobs.tasks.engine_model import LoadedEngine
from rayinfer.jobs.tasks.engine_task import EngineTask, usage
from rayinfer.jobs.tasks.engine_thread import EngineJob, EngineProgress
from rayinfer.jobs.tasks.row_inputs import DEFAULT_INPUTS, InputSettings, read_input
from rayinfer.prediction_outputs import embedding, label_scores, relevance
from rayinfer.predictions import PredictionInput, PredictionOutput, PredictionTask, PredictorDescription
from rayinfer.protocols import EngineRequestId, GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.truncation import Truncation

IMAGE_COLUMNS = ("image", "path", "input", "inputs")
PAIR_COLUMNS = (("query", "document"), ("text", "text_pair"), ("text_1", "text_2"))
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


class PredictionTaskOnEngine(EngineTask):
    """Rows are texts, pairs of texts or images; outputs are numbers."""

    def __init__(self, settings: PredictionTaskProvider) -> None:
        super().__init__(settings.inputs)
        self._settings = settings
        self._task: PredictionTask = settings.task or "embed"
        self._num_tokens: dict[str, int] = {}  # of requests in the engine

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
        """Return the row's item."""
        data, description = row.row.data, _predictor(self.model)
        token_ids: list[int] = []
        if description.image_size:
            image = self._image(data)
            prediction = PredictionInput(task=self._task, image=image, cost=description.image_cost)
        else:
            token_ids, num_first_tokens = self._tokens(data, description)
            prediction = PredictionInput(task=self._task, num_first_tokens=num_first_tokens)
        request = GenerationRequest(
            request_id=f"{row.row.index}/0",
            prompt_token_ids=token_ids,
            sampling_params=SamplingParams(),
            prediction=prediction,
        )
        self._num_tokens[request.request_id] = request.num_input_tokens
        return [EngineJob(request)]

    def read_progress(self, progress: EngineProgress) -> RowOutput | None:
        """Read the numbers of an item."""
        index = int(EngineRequestId.request_id_of(progress.request_id))
        num_tokens = self._num_tokens.pop(progress.request_id)
        if progress.error is not None:
            return RowOutput(index=index, error=progress.error)
        prediction = progress.deltas[-1].prediction
        if prediction is None or prediction.error:
            return RowOutput(index=index, error=prediction.error if prediction else "the engine gave no output")
        settings, description = self._settings, _predictor(self.model)
        value = READERS[self._task](prediction, description, settings)
        columns = {OUTPUT_COLUMNS[self._task]: value, "usage": usage(num_tokens, 0)}
        return RowOutput(index=index, columns=columns, prompt_tokens=num_tokens)

    def _tokens(self, data: Mapping[str, Any], description: PredictorDescription) -> tuple[list[int], int]:
        tokenizer, limit = self.model.tokenizer, self.model.engine.description.max_model_len
        truncation = Truncation(limit, "right") if self._settings.truncates else None
        if self._task == "score":
            pair = tokenizer.encode_pair(*_pair(data, self.inputs), truncation=truncation)
            token_ids, num_first_tokens = pair.token_ids, pair.num_first_tokens
        else:
            text = read_input(data, self.inputs)
            if not isinstance(text, str):
                raise InvalidParameter(f"the input must be a text, got {shown(text)}", "input")
            prompt = description.prompts.get(description.default_prompt_name, "") if self._task == "embed" else ""
            token_ids, num_first_tokens = tokenizer.encode(prompt + text, truncation=truncation), 0
        if len(token_ids) > limit:
            raise PromptTooLong(f"the input has {len(token_ids)} tokens, more than the model's {limit}", "input")
        return token_ids, num_first_tokens

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
            return Path(value).read_bytes()
        except (OSError, binascii.Error) as error:
            raise BadImage(f"the image {value[:80]!r} cannot be read: {error}", "image") from None


def _pair(data: Mapping[str, Any], inputs: InputSettings) -> tuple[str, str]:
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
OUTPUT_COLUMNS = {"embed": "embedding", "classify": "labels", "score": "score"}
