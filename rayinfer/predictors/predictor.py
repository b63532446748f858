"""`Predictor`: a model that does not generate, in this process: embeddings, classes, relevance, images, tensors."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from rayinfer.config import engine_config
from rayinfer.errors import ConfigError, EngineDead, InvalidParameter, RequestFailed, shown
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.prediction_outputs import (
    FloatArray,
    LabelScore,
    activated,
    finish_embedding,
    label_scores,
    prediction_output,
    similarity,
)
from rayinfer.prediction_specs import prediction_specs
from rayinfer.predictions import PredictionTask, PredictorDescription, TensorSpec
from rayinfer.predictors.build_runner import build_runner
from rayinfer.predictors.predictor_inputs import (
    as_inputs,
    as_pairs,
    check_task,
    cut_into_batches,
    make_item,
    make_text_items,
)
from rayinfer.predictors.registered import find_registered_predictor
from rayinfer.predictors.runner import Runner, RunnerItem, RunnerResult
from rayinfer.predictors.runners.image_processing import read_image_processing
from rayinfer.predictors.runners.image_runner import ImageRunner
from rayinfer.predictors.runners.text_runner import TextRunner
from rayinfer.token_entities import OUTSIDE, Aggregation, Entity, find_entities, scored_tokens
from rayinfer.tokenization.tokenizer import Tokenizer

DEFAULT_BATCH_TOKENS = {"cpu": 2048, "cuda": 16_384}
GROUPED_BATCH_TOKENS = 16_384  # of an encoder whose threads take groups of texts: they wait for each other once a batch


class Predictor:
    """A loaded model for one thread; `model` is a folder, a hub repository, an embedded or a registered name.

    `batch_size` is in tokens; lists that are longer run in several batches. Other settings are EngineConfig's.
    Raises ConfigError for settings and ModelLoadError for models that cannot work.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str | None = None,
        dtype: str = "auto",
        quantization: str | None = None,
        batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        self.config = engine_config(model=model, dtype=dtype, quantization=quantization, **settings)
        chosen = _device(device)
        self._batch_size = _checked_batch_size(batch_size, chosen)
        folder = None if find_registered_predictor(model) is not None else resolve_model(model)
        self._runner: Runner | None = build_runner(self.config, folder, chosen)
        if batch_size is None and _computes_in_groups(self._runner):
            self._batch_size = GROUPED_BATCH_TOKENS
        reads_texts = folder is not None and self._runner.max_input_tokens > 0
        self.tokenizer = Tokenizer.from_folder(folder) if folder is not None and reads_texts else None
        reads_images = folder is not None and self._runner.description.image_size > 0
        self._image_shape = read_image_processing(folder).shape if folder is not None and reads_images else None

    def __repr__(self) -> str:
        if self._runner is None:
            return f"Predictor({self.config.model!r}, closed)"
        does = ", ".join(self.description.tasks)
        takes = ", ".join(map(_shown_spec, self.inputs))
        returns = ", ".join(map(_shown_spec, self.outputs))
        return f"Predictor({self.config.model!r}, tasks: {does}; inputs: {takes or '-'}; outputs: {returns or '-'})"

    @property
    def description(self) -> PredictorDescription:
        """Tasks of the model, its labels and how its numbers are read."""
        return self._open.description

    @property
    def max_input_tokens(self) -> int:
        """Longest text, special tokens included; 0 where it takes no text."""
        return self._open.max_input_tokens

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """Names, datatypes and shapes of what it takes, as services describe it; -1 is the batch, or any size."""
        return prediction_specs(self.description).inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """Names, datatypes and shapes of what services return of it."""
        return prediction_specs(self.description).outputs

    # Numbers of any model

    def predict(self, value: Any, *, raw: bool = False, truncate: bool = False) -> RunnerResult:
        """Return the numbers of one input, as a service does: a text, a pair of texts, an image or named tensors.

        They are an embedding, normalized as the model has it and behind its default prompt, probabilities, relevance,
        or named tensors. `raw` are the model's own numbers, before all that.
        """
        return self.predict_batch([value], raw=raw, truncate=truncate)[0]

    def predict_batch(self, inputs: Sequence[Any], *, raw: bool = False, truncate: bool = False) -> list[RunnerResult]:
        """Return the numbers of several inputs, in their order."""
        description, task = self.description, self.description.tasks[0]
        listed = as_inputs(inputs)
        if raw or task == "infer":
            return self._run(task, listed, truncate=truncate)
        if task in ("embed", "token_embed"):
            prompted = self._prompted(listed, None)
            return [finish_embedding(each, description) for each in self._arrays(task, prompted, truncate=truncate)]
        return [activated(each, description.activation) for each in self._arrays(task, listed, truncate=truncate)]

    # Embeddings

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
    ) -> FloatArray:
        """Return embeddings [num_texts, size], of a single text [size].

        The prompt of this name, by default the model's own, is put before each text; "" is none. `dimensions` cuts
        embeddings, and `normalize` is the model's own way by default.
        """
        check_task(self._open, "embed", "embed")
        prompted = self._prompted([texts] if isinstance(texts, str) else as_inputs(texts), prompt_name)
        vectors = np.stack(self._arrays("embed", prompted, truncate=truncate))
        finished = finish_embedding(vectors, self.description, dimensions, normalize)
        return finished[0] if isinstance(texts, str) else finished

    # Classification

    def predict_proba(self, inputs: Any, *, truncate: bool = False) -> FloatArray:
        """Return the probabilities of all labels [num_inputs, num_labels], of an input that is no list [num_labels]."""
        check_task(self._open, "predict_proba", "classify")
        listed = as_inputs(inputs) if isinstance(inputs, list) else [inputs]
        scores = activated(np.stack(self._arrays("classify", listed, truncate=truncate)), self.description.activation)
        return scores if isinstance(inputs, list) else scores[0]

    def predict_class(self, inputs: Any, *, truncate: bool = False) -> str | list[str]:
        """Return the best label of each input, of an input that is no list one label."""
        best = self.predict_proba(inputs, truncate=truncate).argmax(-1)
        labels = self.description.labels
        return [labels[index] for index in best] if isinstance(inputs, list) else labels[int(best)]

    def classify(
        self, inputs: Any, *, top_k: int | None = None, truncate: bool = False
    ) -> list[LabelScore] | list[list[LabelScore]]:
        """Return each input's labels with their scores, best first; `top_k` None: all.

        Of an input that is no list it is one list of labels.
        """
        check_task(self._open, "classify", "classify")
        numbers = self._arrays("classify", inputs if isinstance(inputs, list) else [inputs], truncate=truncate)
        scores = [label_scores(prediction_output(array), self.description, top_k=top_k) for array in numbers]
        return scores if isinstance(inputs, list) else scores[0]

    def token_classify(
        self,
        texts: str | Sequence[str],
        *,
        aggregation: Aggregation = "none",
        ignored_labels: Sequence[str] = (OUTSIDE,),
        truncate: bool = False,
    ) -> list[Entity] | list[list[Entity]]:
        """Return each text's entities; see `find_entities` for the ways of aggregation."""
        check_task(self._open, "token_classify", "token_classify")
        assert self.tokenizer is not None, "a model of tokens reads texts"
        tokenizer, labels = self.tokenizer, self.description.labels
        listed = [texts] if isinstance(texts, str) else as_inputs(texts)
        found = [
            find_entities(
                scored_tokens(tokenizer, text, numbers), labels, aggregation, tokenizer.join_pieces, ignored_labels
            )
            for text, numbers in zip(listed, self._arrays("token_classify", listed, truncate=truncate), strict=True)
        ]
        return found[0] if isinstance(texts, str) else found

    # Relevance

    def score(
        self, query: str | Sequence[str] | Sequence[tuple[str, str]], documents: Sequence[str] | None = None, *,
        raw: bool = False, truncate: bool = False,
    ) -> FloatArray:  # fmt: skip
        """Return the relevance of each document to a query or to that of its place, or of each of a list of pairs.

        Rerankers read both texts at once; `raw` leaves their activation out. Of embedders it is the similarity.
        """
        task = check_task(self._open, "score", "score", "embed")
        pairs = as_pairs(query, documents)
        if task == "embed":
            return self._similarities(pairs, truncate=truncate)
        scores = np.stack(self._arrays("score", pairs, truncate=truncate))[:, 0]
        return scores if raw else activated(scores, self.description.activation)

    # Life

    def close(self) -> None:
        """Free the model; a closed predictor computes nothing any more."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _open(self) -> Runner:
        if self._runner is None:
            raise EngineDead("this predictor has been closed")
        return self._runner

    def _run(self, task: PredictionTask, inputs: Sequence[Any], *, truncate: bool) -> list[RunnerResult]:
        runner, shape, listed = self._open, self._image_shape, as_inputs(inputs)

        def make(index: int) -> RunnerItem:
            place = f"input {index}"
            return make_item(runner, self.tokenizer, task, listed[index], place, shape=shape, truncate=truncate)

        if isinstance(runner, ImageRunner):
            return [_checked_result(each, index) for index, each in enumerate(runner.run_lazily(make, len(listed)))]
        if self.tokenizer is not None:
            items = make_text_items(runner, self.tokenizer, task, listed, truncate=truncate)
        else:
            items = [make(index) for index in range(len(listed))]
        results: dict[int, RunnerResult] = {}
        for batch in cut_into_batches(items, self._batch_size):
            results |= zip(batch, runner.run([items[index] for index in batch]), strict=True)
        return [_checked_result(results[index], index) for index in range(len(listed))]

    def _arrays(self, task: PredictionTask, inputs: Sequence[Any], *, truncate: bool) -> list[npt.NDArray[np.float32]]:
        return [array for array in self._run(task, inputs, truncate=truncate) if not isinstance(array, dict)]

    def _prompted(self, texts: Sequence[Any], name: str | None) -> list[Any]:
        """Put a prompt before texts, by its name; None: the model's default."""
        description = self.description
        name = description.default_prompt_name if name is None else name
        if name and name not in description.prompts:
            known = ", ".join(description.prompts) or "none"
            raise InvalidParameter(f"prompt_name {shown(name)} is not one of the model's: {known}", "prompt_name")
        prompt = description.prompts[name] if name else ""
        return [prompt + text if isinstance(text, str) and text else text for text in texts]

    def _similarities(self, pairs: Sequence[tuple[str, str]], *, truncate: bool) -> FloatArray:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = dict(zip(texts, self.embed(texts, truncate=truncate), strict=True))
        kind = self.description.similarity
        scores = [similarity(vectors[one], vectors[other], kind) for one, other in pairs]
        return np.array(scores, dtype=np.float32)


def _shown_spec(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype}{'' if spec.shape is None else list(spec.shape)}"


def _checked_result(result: RunnerResult, index: int) -> RunnerResult:
    arrays: Mapping[str, Any] = result if isinstance(result, dict) else {"output": result}
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RequestFailed(f"input {index}: {name} has numbers that are not finite")
    return result


def _device(name: str | None) -> torch.device | None:
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in DEFAULT_BATCH_TOKENS or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"device must be cpu, or cuda where there is a GPU, got {name!r:.80}")
    return device


def _computes_in_groups(runner: Runner) -> bool:
    """Return whether each thread takes groups of texts of its own from a batch of GROUPED_BATCH_TOKENS."""
    if not isinstance(runner, TextRunner) or not runner.has_stack:
        return False
    return runner.max_input_tokens * torch.get_num_threads() <= GROUPED_BATCH_TOKENS


def _checked_batch_size(batch_size: Any, device: torch.device | None) -> int:
    if batch_size is None:
        kind = device.type if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
        return DEFAULT_BATCH_TOKENS[kind]
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size must be a number of tokens above 0, got {shown(batch_size)}")
    return batch_size
