"""Objectives of a service, from which burn rates and error budgets are computed."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rayinfer.metrics.histogram import FIRST_TOKEN_S, INTER_TOKEN_S


class Objectives(BaseModel):
    """Times that most answers must keep; they are limits of the histograms' buckets, as only those are counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttft_s: float = Field(
        default=1.0,
        description="seconds to the first token; a limit of a bucket, as 0.5, 1 or 2.5",
        json_schema_extra={"enum": [*FIRST_TOKEN_S]},
    )
    ttft_target: float = Field(default=0.95, gt=0.5, lt=1, description="share of the streams that keep ttft_s")
    itl_s: float = Field(
        default=0.1,
        description="seconds between two tokens; a limit of a bucket, as 0.05 or 0.1",
        json_schema_extra={"enum": [*INTER_TOKEN_S]},
    )
    itl_target: float = Field(default=0.99, gt=0.5, lt=1, description="share of the tokens that keep itl_s")
    success_target: float = Field(
        default=0.999, gt=0.5, lt=1, description="share of the streams that end without error, timeout or rejection"
    )

    @field_validator("ttft_s")
    @classmethod
    def _first_token_is_counted(cls, value: float) -> float:
        return _known(value, FIRST_TOKEN_S)

    @field_validator("itl_s")
    @classmethod
    def _inter_token_is_counted(cls, value: float) -> float:
        return _known(value, INTER_TOKEN_S)

    def placed(self, text: str) -> str:
        """Replace the places of objectives in rules: `@ttft_s@` and the like."""
        for name, value in self.model_dump().items():
            text = text.replace(f"@{name}@", repr(float(value)))
        return text


def _known(value: float, bounds: tuple[float, ...]) -> float:
    if value not in bounds:
        raise ValueError(f"{value:g} s is no limit of a bucket; those are {', '.join(f'{each:g}' for each in bounds)}")
    return value
