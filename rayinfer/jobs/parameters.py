"""Parameters of an inference job, and the mesh of processes that runs it."""

import math
import re
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rayinfer.errors import ConfigError, shown
from rayinfer.setting_names import first_finding, unknown_setting

_STRICT = ConfigDict(extra="forbid", frozen=True)
Settings = TypeVar("Settings", bound=BaseModel)

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")


class Mesh(BaseModel):
    """Processes of a job: data-parallel workers, each with one replica of the model in so many pipeline stages."""

    model_config = _STRICT

    data_parallel: int = Field(default=1, ge=1, le=1024)
    pipeline_parallel: int = Field(default=1, ge=1, le=64)
    tensor_parallel: int = Field(default=1, ge=1, le=64)


class Batching(BaseModel):
    """Batches of a forward-only task: rows of one forward pass of all workers, and of one pass through a stage."""

    model_config = _STRICT

    global_batch_size: int = Field(default=32, ge=1)
    microbatch_size: int = Field(default=8, ge=1)


class Window(BaseModel):
    """Rows in flight between source and sink: bounds of what may be read and not yet written."""

    model_config = _STRICT

    rows: int = Field(default=1024, ge=1, description="rows that are read and not yet written")
    bytes: int = Field(default=64 * 2**20, ge=1, description="size of these rows, about; one row is always let in")
    orders_rows: bool = Field(default=True, description="compute rows with equal beginnings together, long ones first")


class Checkpointing(BaseModel):
    """Intervals of checkpoints: whichever comes first."""

    model_config = _STRICT

    period_rows: int | None = Field(default=10_000, ge=1)
    period_s: float | None = Field(default=10.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.period_rows is None and self.period_s is None:
            raise ValueError("period_rows and period_s must not both be null: a job without checkpoints cannot resume")
        return self


class GarbageCollection(BaseModel):
    """Python's cyclic garbage collection, run by the loop between steps."""

    model_config = _STRICT

    period_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)


class Profiling(BaseModel):
    """Traces of the steps, written periodically."""

    model_config = _STRICT

    traces_dir: Path
    period_steps: int = Field(default=1000, ge=1)
    warmup_steps: int = Field(default=1, ge=0)
    active_steps: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup_steps + self.active_steps > self.period_steps:
            raise ValueError(
                f"period_steps must be at least warmup_steps + active_steps "
                f"({self.warmup_steps + self.active_steps}), got {self.period_steps}"
            )
        return self


class Timeouts(BaseModel):
    """Longest times without progress."""

    model_config = _STRICT

    setup_s: float = Field(default=3600.0, gt=0, description="until the model is loaded in a worker")
    step_s: float = Field(default=600.0, gt=0, description="without a step of any worker that has rows")


class JobParameters(BaseModel):
    """Parameters of a job's loop; none of them changes a row's output but `base_seed`."""

    model_config = _STRICT

    base_seed: int = Field(default=0, ge=0, lt=2**63)
    max_errors: int | str = Field(
        default="99%", description="errors beyond which the job ends: rows, or a share such as 5%"
    )
    batching: Batching = Batching()
    window: Window = Window()
    checkpointing: Checkpointing = Checkpointing()
    garbage_collection: GarbageCollection = GarbageCollection()
    profiling: Profiling | None = None
    timeouts: Timeouts = Timeouts()

    @field_validator("max_errors")
    @classmethod
    def _check_max_errors(cls, value: int | str) -> int | str:
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, str):
            found = _PERCENT.fullmatch(value)
            if found is None or float(found[1]) > 100:
                raise ValueError(f"must be a number of rows or a share from 0% to 100%, got {shown(value)}")
        elif value < 0:
            raise ValueError(f"must not be negative, got {value}")
        return value

    @property
    def max_error_rows(self) -> float:
        """Errors that are allowed in all."""
        return math.inf if isinstance(self.max_errors, str) else self.max_errors

    @property
    def max_error_share(self) -> float:
        """Share of errors that is allowed, 0 to 1."""
        return float(self.max_errors[:-1]) / 100 if isinstance(self.max_errors, str) else 1.0


def job_parameters(**given: Any) -> JobParameters:
    """Build parameters; raises ConfigError that names the first wrong one."""
    return _checked(JobParameters, given)


def job_mesh(**given: Any) -> Mesh:
    """Build a mesh; raises ConfigError that names the first wrong size."""
    return _checked(Mesh, given)


def check_batching(mesh: Mesh, parameters: JobParameters) -> None:
    """Raise ConfigError unless the workers share a global batch out in whole microbatches."""
    sizes, num_workers = parameters.batching, mesh.data_parallel
    share = num_workers * sizes.microbatch_size
    if sizes.global_batch_size % share:
        raise ConfigError(
            f"batching.global_batch_size must be a multiple of data_parallel * microbatch_size ({num_workers} * "
            f"{sizes.microbatch_size} = {share}), got {sizes.global_batch_size}"
        )


def _checked(kind: type[Settings], given: dict[str, Any]) -> Settings:
    try:
        return kind(**given)
    except ValidationError as error:
        found = first_finding(error)
        if found["type"] == "extra_forbidden":
            raise ConfigError(unknown_setting(kind, found)) from None
        where = ".".join(str(part) for part in found["loc"] if part not in ("int", "str"))
        reason = found["msg"].removeprefix("Value error, ")
        value = "" if found["type"] in ("value_error", "missing") else f", got {shown(found['input'])}"
        raise ConfigError(f"{where + ': ' if where else ''}{reason}{value}") from None
