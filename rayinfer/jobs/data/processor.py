"""Processors of data sets, in the manner of ray.data.llm: preprocess, engine, postprocess."""

import importlib
from collections.abc import Callable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayinfer.config import DEFAULT_MODEL, engine_config
from rayinfer.errors import ConfigError, shown
from rayinfer.jobs.providers import TaskProvider
from rayinfer.jobs.tasks.engine_model import EngineProvider
from rayinfer.jobs.tasks.generation_task import GenerationTaskProvider
from rayinfer.jobs.tasks.prediction_task import PredictionTaskProvider
from rayinfer.jobs.tasks.row_inputs import InputSettings
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.predictions import PredictionTask

RowFunction = Callable[[dict[str, Any]], dict[str, Any]]


class ProcessorConfig(BaseModel):
    """Settings of a processor; those of rows have the names that batch jobs give them."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(default=DEFAULT_MODEL, min_length=1)
    engine: dict[str, Any] = Field(default_factory=dict, description="fields of EngineConfig")
    sampling: dict[str, Any] = Field(default_factory=dict, description="fields of SamplingParams")
    prompt_column: str | None = None
    prompt_template: str | None = None
    chat: bool = False
    system: str | None = None
    task: PredictionTask | None = None
    top_k_labels: int | None = Field(default=None, ge=1)
    dimensions: int | None = Field(default=None, ge=1)
    id_column: str | None = Field(default=None, description="ids, for seeds; by default custom_id or id")
    base_seed: int = Field(default=0, ge=0, lt=2**63)
    batch_size: int = Field(default=32, ge=1, description="rows of a batch of Ray Data")
    concurrency: int | tuple[int, int] = Field(default=1, description="engines; two numbers: autoscaled between them")
    max_concurrent_batches: int = Field(default=8, ge=1, description="batches at once in an engine")
    num_cpus: float | None = Field(default=None, ge=0, description="of each engine's actor")
    num_gpus: float | None = Field(
        default=None, ge=0, description="of each engine's actor (default: its ranks, where the cluster has GPUs)"
    )
    should_continue_on_error: bool = Field(
        default=True, description="a row that fails has `error`; false: it fails the data set"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.bounds
        if not 1 <= low <= high:
            raise ValueError(f"must be at least 1, and the first number no more than the second, not {low} and {high}")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest number of engines."""
        return self.concurrency if isinstance(self.concurrency, tuple) else (self.concurrency, self.concurrency)


def processor_config(**settings: Any) -> ProcessorConfig:
    """Build a processor's settings; raises ConfigError that names the first wrong one."""
    try:
        return ProcessorConfig(**settings)
    except ValidationError as error:
        found = error.errors()[0]
        name = ".".join(map(str, found["loc"])) or "concurrency"
        raise ConfigError(f"{name}: {found['msg']}, got {shown(found['input'])}") from None


class Processor:
    """Function from data set to data set; nothing is computed before the result is read."""

    def __init__(
        self, config: ProcessorConfig, preprocess: RowFunction | None, postprocess: RowFunction | None
    ) -> None:
        self.config = config
        self._preprocess = preprocess
        self._postprocess = postprocess
        self._arguments = map_batches_arguments(config)

    def __call__(self, dataset: Any) -> Any:
        """Add preprocessing, engines and postprocessing to a data set's plan."""
        if self._preprocess is not None:
            dataset = dataset.map(self._preprocess)
        dataset = dataset.map_batches(**self._arguments)
        return dataset if self._postprocess is None else dataset.map(self._postprocess)


def build_processor(
    config: ProcessorConfig, preprocess: RowFunction | None = None, postprocess: RowFunction | None = None
) -> Processor:
    """Make a processor; the functions map rows before and after the engine, where all columns are kept.

    Raises ConfigError and ModelLoadError before anything is computed.
    """
    return Processor(config, preprocess, postprocess)


def map_batches_arguments(config: ProcessorConfig) -> dict[str, Any]:
    """Return the arguments with which `Dataset.map_batches` runs the engines."""
    data = _module("ray.data")
    engine_udf = _module("rayinfer.jobs.data.engine_udf")
    engine = engine_config(model=config.model, **config.engine)
    low, high = config.bounds
    size: dict[str, int] = {"size": low} if low == high else {"min_size": low, "max_size": high}
    pool = data.ActorPoolStrategy(**size, max_concurrent_calls_per_actor=config.max_concurrent_batches)
    return {
        "fn": engine_udf.EngineUDF,
        "fn_constructor_args": (_task_provider(config), EngineProvider(engine)),
        "fn_constructor_kwargs": {
            "num_engines": high,
            "id_column": config.id_column,
            "base_seed": config.base_seed,
            "continues_on_error": config.should_continue_on_error,
        },
        "batch_size": config.batch_size,
        "batch_format": "pyarrow",
        "compute": pool,
        "udf_modifying_row_count": False,
        **_resources(config, engine.tensor_parallel_size * engine.pipeline_parallel_size),
    }


def _resources(config: ProcessorConfig, num_ranks: int) -> dict[str, float]:
    """Return an actor's resources: its ranks are its children, so it holds their GPUs, too."""
    ray = _module("ray")
    num_gpus = config.num_gpus
    if num_gpus is None and ray.is_initialized() and ray.cluster_resources().get("GPU", 0):
        num_gpus = num_ranks
    given = {"num_cpus": config.num_cpus, "num_gpus": num_gpus}
    return {name: value for name, value in given.items() if value is not None}


def _task_provider(config: ProcessorConfig) -> TaskProvider:
    inputs = InputSettings(
        column=config.prompt_column, template=config.prompt_template, system=config.system, is_chat=config.chat
    )
    if predictor_kind(resolve_model(config.model)) is None:
        return GenerationTaskProvider(inputs=inputs, sampling=config.sampling)
    if config.sampling:
        raise ConfigError(f"sampling: {config.model!r} does not generate")
    return PredictionTaskProvider(
        inputs=inputs, task=config.task, top_k=config.top_k_labels, dimensions=config.dimensions
    )


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"data sets need the packages of rayinfer[data]: {error}") from None
