"""Batch jobs: a model over a file of rows, by settings from Python, YAML or the command line."""

import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayinfer.config import DEFAULT_MODEL, EngineConfig, engine_config
from rayinfer.errors import ConfigError, shown
from rayinfer.jobs.batch_lines import BatchLineRecords
from rayinfer.jobs.events import EventBus
from rayinfer.jobs.inference import Inference, InferenceConfigurator
from rayinfer.jobs.interfaces import RowSink, SinkError
from rayinfer.jobs.loop.progress_display import ProgressDisplay
from rayinfer.jobs.parameters import JobParameters, Mesh, job_parameters
from rayinfer.jobs.progress.folder import ProgressFolder, job_digest
from rayinfer.jobs.progress.lease import acquire_lease
from rayinfer.jobs.providers import ColumnRecords, JobContext, JobData, ModelProvider, RecordMaker, TaskProvider
from rayinfer.jobs.sinks.formats import SinkFormat, open_sink, sink_format
from rayinfer.jobs.sources.formats import SourceFormat, open_source
from rayinfer.jobs.sources.input_files import find_input_files, is_folder
from rayinfer.jobs.storage.locations import is_among, is_url
from rayinfer.jobs.tasks.engine_model import EngineProvider
from rayinfer.jobs.tasks.generation_task import GenerationTaskProvider
from rayinfer.jobs.tasks.prediction_task import PredictionTaskProvider
from rayinfer.jobs.tasks.row_inputs import InputSettings
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.predictions import PredictionTask
from rayinfer.setting_names import first_finding, unknown_setting

# Settings of engines that outputs depend on; others, such as sizes of batches, may change when a job goes on.
OUTPUT_SETTINGS = (
    *("dtype", "quantization", "kv_cache_dtype", "load_format", "max_model_len"),
    *("generation_config", "override_generation_config"),
)
DEFAULT_MAX_TOKENS = 128
ACTORS = "rayinfer.jobs.workers.actor_task"
OutputShape = Literal["columns", "openai"]


class BatchJob(BaseModel):
    """Settings of a batch job; the command's options and the keys of a YAML file have these names."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    input: str = Field(min_length=1)
    output: str = Field(min_length=1)
    model: str = Field(default=DEFAULT_MODEL, min_length=1)
    workers: int = Field(default=1, ge=1, le=1024)
    input_format: SourceFormat | None = None
    output_format: SinkFormat | None = None
    output_shape: OutputShape | None = None  # openai by default where the input's format is
    split: str | None = None  # of a data set
    id_column: str | None = None
    prompt_column: str | None = None
    prompt_template: str | None = None
    chat: bool = False
    system: str | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    task: PredictionTask | None = None
    top_k_labels: int | None = Field(default=None, ge=1)
    dimensions: int | None = Field(default=None, ge=1)
    truncate: bool = True
    keep_columns: bool = True
    progress: str | None = None  # folder; by default OUTPUT.progress
    force_config: bool = False
    engine: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, Any] = Field(default_factory=dict)

    @property
    def progress_location(self) -> str:
        """Folder or URL of the job's progress."""
        return self.progress or default_progress(self.output)


def default_progress(output: str) -> str:
    """Return where a job keeps its progress unless it is given: beside the output."""
    return f"{output.rstrip('/')}.progress"


def batch_job(**settings: Any) -> BatchJob:
    """Build a job's settings; raises ConfigError that names the first wrong one."""
    try:
        return BatchJob(**settings)
    except ValidationError as error:
        found = first_finding(error)
        name = ".".join(map(str, found["loc"]))
        if found["type"] == "extra_forbidden":
            raise ConfigError(unknown_setting(BatchJob, found)) from None
        value = "" if found["type"] == "missing" else f", got {shown(found['input'])}"
        raise ConfigError(f"{name}: {found['msg']}{value}") from None


def read_batch_job(path: Path) -> dict[str, Any]:
    """Read settings from YAML; raises ConfigError."""
    try:
        settings = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(f"{path}: must hold names and values")
    return settings


def configure_batch_job(
    job: BatchJob,
    *,
    events: EventBus | None = None,
    display: ProgressDisplay | None = None,
    stop: threading.Event | None = None,
) -> Inference:
    """Check a job's settings and open its data; no model is loaded yet.

    With several workers Ray must run already. Raises ConfigError, JobError and ModelLoadError.
    """
    _check_locations(job)
    config, parameters = engine_config(model=job.model, **job.engine), job_parameters(**job.parameters)
    tasks = _task_provider(job)
    models: ModelProvider = EngineProvider(config)
    if job.workers > 1:
        actors = importlib.import_module(ACTORS)  # it needs Ray
        tasks, models = actors.ActorTaskProvider(tasks), actors.ActorModelProvider(tasks, models)
    mesh = Mesh(
        data_parallel=job.workers,
        pipeline_parallel=config.pipeline_parallel_size,
        tensor_parallel=config.tensor_parallel_size,
    )
    data = FileData(job, config, parameters)
    # Batches are the engine's own: sizes of forward passes do not apply.
    parameters = parameters.model_copy(
        update={
            "batching": parameters.batching.model_copy(update={"global_batch_size": job.workers, "microbatch_size": 1})
        }
    )
    configurator = InferenceConfigurator(
        mesh, parameters, models, tasks, data, events=events, display=display, stop=stop
    )
    return configurator.configure()


@dataclass(frozen=True, slots=True)
class FileData:
    """DataProvider of files: refuses a second copy of the job, and another configuration."""

    job: BatchJob
    config: EngineConfig
    parameters: JobParameters

    def __call__(self, context: JobContext) -> JobData:
        """Open source, progress and sink."""
        job = self.job
        records = _records(job)
        progress = ProgressFolder(job.progress_location)
        sink = open_sink(job.output, format=job.output_format)
        source = open_source(
            job.input, format=job.input_format, id_column=job.id_column, split=job.split, scan_store=progress
        )
        settings = self._settings(source.digest)
        lease = acquire_lease(progress, "rayinfer batch")
        try:
            _check_output(job, sink, progress)
            progress.check_settings(settings, force=job.force_config)
            if progress.committed() is None:
                progress.clear_cancel()
        except BaseException:
            lease.release()
            raise
        return JobData(
            source=source,
            sink=sink,
            progress=progress,
            job_digest=job_digest(settings),
            lease=lease,
            records=records,
            goes_on_after_change=job.force_config,
        )

    def _settings(self, source_digest: str) -> Mapping[str, Any]:
        """Return all that outputs depend on."""
        job = self.job
        return {
            "input": source_digest,
            "model": job.model,
            **{name: getattr(self.config, name) for name in OUTPUT_SETTINGS},
            **{
                name: getattr(job, name)
                for name in (
                    *("prompt_column", "prompt_template", "chat", "system", "sampling", "task", "top_k_labels"),
                    *("dimensions", "truncate", "keep_columns", "output_format"),
                )
            },
            "output_shape": _output_shape(job),
            "base_seed": self.parameters.base_seed,
        }


def _check_locations(job: BatchJob) -> None:
    """Raise ConfigError or SourceError for what can be seen before a model is downloaded."""
    sink_format(job.output, job.output_format)
    if is_among(job.input, job.output) or is_among(job.output, job.input):
        raise ConfigError(f"output: {job.output} is the input, one of its files or its folder; take another output")
    if not is_url(job.input) and not is_folder(job.input):
        find_input_files(job.input)


def _check_output(job: BatchJob, sink: RowSink, progress: ProgressFolder) -> None:
    """Raise SinkError for an output of others, and where that of a complete job is gone."""
    if not progress.is_begun and sink.exists():
        raise SinkError(
            f"{job.output}: exists already, and {progress.location} has no job that wrote it; remove it, or take"
            " another output"
        )
    if progress.committed() is not None and not sink.exists():
        raise SinkError(
            f"{job.output}: the job is complete, but its output is not there any more; remove {progress.location}"
            " to compute it again"
        )


def _output_shape(job: BatchJob) -> OutputShape:
    return job.output_shape or ("openai" if job.input_format == "openai" else "columns")


def _records(job: BatchJob) -> RecordMaker:
    """Return the maker of the output's rows; raises ConfigError where the output cannot hold them."""
    if _output_shape(job) == "columns":
        return ColumnRecords(job.keep_columns)
    if job.input_format != "openai":
        raise ConfigError("output_shape openai is for the input_format openai")
    if (found := sink_format(job.output, job.output_format)) != "jsonl":
        raise ConfigError(f"output_shape openai is written as JSON lines, not {found}; take output_shape columns")
    return BatchLineRecords(job.model)


def _task_provider(job: BatchJob) -> TaskProvider:
    inputs = InputSettings(column=job.prompt_column, template=job.prompt_template, system=job.system, is_chat=job.chat)
    if predictor_kind(resolve_model(job.model)) is None:
        if given := [name for name in ("task", "top_k_labels", "dimensions") if getattr(job, name) is not None]:
            raise ConfigError(f"{', '.join(given)}: {job.model!r} generates text")
        sampling = {"max_tokens": DEFAULT_MAX_TOKENS, **job.sampling}
        return GenerationTaskProvider(inputs=inputs, sampling=sampling)
    if job.sampling:
        raise ConfigError(f"{', '.join(job.sampling)}: {job.model!r} does not generate")
    return PredictionTaskProvider(
        inputs=inputs, task=job.task, top_k=job.top_k_labels, dimensions=job.dimensions, truncates=job.truncate
    )
