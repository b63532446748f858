"""Settings of a canary release, part of the router's limits, so that they change while requests run."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CanarySettings(BaseModel):
    """Share of a model's requests that another served model answers, and when it is rolled back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1, description="served model that answers the share")
    share: float = Field(ge=0, le=1, description="share of the requests, or of the tenants; 1: promoted")
    by: Literal["request", "tenant"] = Field(
        default="request", description="what is hashed: each request, or its tenant, who then always gets one version"
    )
    max_error_rate: float | None = Field(
        default=0.05, ge=0, le=1, description="failed requests, above the stable version's rate, that end the canary"
    )
    max_ttft_ratio: float | None = Field(
        default=2.0, gt=0, description="mean TTFT, against the stable version's, that ends the canary"
    )
    min_requests: int = Field(default=50, ge=1, description="requests of the canary before it is judged")
