"""Autoscaling settings: bounds, objectives and delays for a model's number of engines."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayinfer.errors import ConfigError
from rayinfer.setting_names import describe_validation_error


class AutoscalingSettings(BaseModel):
    """Bounds, objectives and delays; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(1, ge=0, le=1024, description="fewest engines; 0 lets an idle model have none")
    max_replicas: int = Field(ge=1, le=1024, description="most engines")
    initial_replicas: int | None = Field(
        None, ge=1, le=1024, description="engines at the start; default: the fewest, but at least one"
    )
    ttft_objective_s: float = Field(2.0, gt=0, description="time within which a request should have its first token")
    attainment: float = Field(
        0.95, gt=0, lt=1, description="share of the requests that should; with fewer, another engine is started"
    )
    target_waiting_tokens: int = Field(
        4096, ge=1, description="tokens of prompts that may wait for each engine, in routers and engines together"
    )
    target_usage: float = Field(
        0.85, gt=0, le=1, description="share of an engine's cache, and of its max_num_seqs, that may be in use"
    )
    upscale_delay_s: float = Field(2.0, ge=0, description="how long engines must be too few before others are started")
    downscale_delay_s: float = Field(
        300.0, ge=0, description="how long fewer engines must have sufficed before one is stopped"
    )
    idle_timeout_s: float = Field(
        600.0, ge=5, description="how long a model must have had no request before its last engine is stopped"
    )
    cold_start_timeout_s: float = Field(
        300.0, gt=0, description="how long requests wait for the first engine; then they are rejected with 503"
    )

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "AutoscalingSettings":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas={self.min_replicas} is more than max_replicas={self.max_replicas}")
        if not self.min_replicas <= self.first_replicas <= self.max_replicas:
            raise ValueError(
                f"initial_replicas={self.initial_replicas} does not lie between min_replicas={self.min_replicas} "
                f"and max_replicas={self.max_replicas}"
            )
        return self

    @property
    def first_replicas(self) -> int:
        """Engines at the start: even a model that may have none is loaded once, to check that it can be."""
        return max(1, self.min_replicas) if self.initial_replicas is None else self.initial_replicas

    def bounded(self, num_engines: int) -> int:
        """Keep a number of engines within the bounds."""
        return min(max(num_engines, self.min_replicas), self.max_replicas)


def autoscaling_settings(settings: Mapping[str, Any]) -> AutoscalingSettings:
    """Validate settings; raises a ConfigError that names every invalid one."""
    try:
        return AutoscalingSettings.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None
