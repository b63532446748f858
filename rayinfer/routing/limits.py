"""Limits of a router: admission, order and streaming; all can be changed while requests run."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rayinfer.errors import ConfigError
from rayinfer.routing.canary.settings import CanarySettings
from rayinfer.setting_names import describe_validation_error

MOST_URGENT, LEAST_URGENT = -10, 10


class TenantLimits(BaseModel):
    """Weight and bounds of one tenant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(
        default=1.0, ge=1e-6, le=1e6, description="share of the tokens under overload, against others"
    )
    most_urgent: int = Field(
        default=MOST_URGENT, ge=MOST_URGENT, le=LEAST_URGENT, description="lowest priority number that it may use"
    )
    max_waiting_requests: int | None = Field(
        default=None, ge=0, description="its requests that may wait; 0: all are rejected"
    )
    max_waiting_tokens: int | None = Field(default=None, ge=1, description="its tokens that may wait")


class RouterLimits(BaseModel):
    """Limits of one model's queue in each router; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_waiting_requests: int = Field(
        default=256, ge=1, description="requests that may wait for their first token; more are rejected with 429"
    )
    max_waiting_tokens: int | None = Field(
        default=None, ge=1, description="tokens of those requests; default: 16 times what the engines' caches hold"
    )
    ageing_s: float = Field(default=10.0, ge=0, le=3600, description="how much earlier one level of priority counts")
    route_by_prefix: bool = Field(default=True, description="prefer the engine that has most of the prompt cached")
    group_by_prefix: bool = Field(default=True, description="dispatch waiting requests that share a prefix together")
    stream_interval: int = Field(
        default=1, ge=1, le=1024, description="tokens per chunk of a new stream, after its first token"
    )
    tenants: dict[str, TenantLimits] = Field(default={}, description="limits of single tenants, by name")
    other_tenants: TenantLimits = Field(default=TenantLimits(), description="limits of each tenant not named there")

    canaries: dict[str, CanarySettings] = Field(
        default={}, description="canary releases, by the name of the model whose requests they share"
    )

    @field_validator("canaries")
    @classmethod
    def _has_no_chains(cls, canaries: dict[str, CanarySettings]) -> dict[str, CanarySettings]:
        for name, canary in canaries.items():
            if canary.model in canaries or canary.model == name:
                raise ValueError(f"the canary of {name!r} is {canary.model!r}, which must not have a canary itself")
        return canaries

    def of_tenant(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        return self.tenants.get(tenant, self.other_tenants)


def router_limits(settings: Mapping[str, Any]) -> RouterLimits:
    """Validate limits; raises a ConfigError that names every invalid one."""
    try:
        return RouterLimits.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None


def with_tenant_weights(limits: RouterLimits, weights: Mapping[str, float]) -> RouterLimits:
    """Return the limits with the weights of tenants that they do not name."""
    default = limits.other_tenants
    added = {
        tenant: default.model_copy(update={"weight": weight})
        for tenant, weight in weights.items()
        if tenant not in limits.tenants and weight != default.weight
    }
    return limits.model_copy(update={"tenants": {**added, **limits.tenants}}) if added else limits
