"""Roles of engines: prefill engines compute long prompts, decode engines continue their streams."""

from collections.abc import Collection, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayinfer.errors import ConfigError
from rayinfer.routing.engine_choice import Candidate, RequestCost
from rayinfer.setting_names import describe_validation_error


class RoleSettings(BaseModel):
    """Number of a model's engines of each role, and the length of long prompts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefill: int = Field(ge=1, le=1024, description="engines that compute long prompts")
    decode: int = Field(ge=1, le=1024, description="engines that compute all other prompts, and all further tokens")
    min_prompt_tokens: int = Field(
        1024, ge=1, description="prompt tokens that no decode engine has cached, from which on a prompt is long"
    )

    @property
    def num_engines(self) -> int:
        """Return the number of engines of both roles."""
        return self.prefill + self.decode

    @model_validator(mode="before")
    @classmethod
    def _may_be_text(cls, settings: Any) -> Any:
        if not isinstance(settings, str):
            return settings
        parts = [[piece.strip() for piece in part.split("=")] for part in settings.split(",")]
        if any(len(part) != 2 for part in parts):
            raise ValueError("prefill=1,decode=2 is their form")
        return {name.replace("-", "_"): value for name, value in parts}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `prefill=1,decode=2`, with `min_prompt_tokens=...` where it is not the default; raises ConfigError."""
        try:
            return cls.model_validate(text)
        except ValidationError as error:
            raise ConfigError(f"roles: {describe_validation_error(error)}") from None


def prefill_engines(names: Collection[str], roles: RoleSettings | None) -> frozenset[str]:
    """Return which of these engines have the role prefill: every router chooses the same, and leaves one to decode."""
    if roles is None:
        return frozenset()
    return frozenset(sorted(names)[: min(roles.prefill, len(names) - 1)])


def of_fitting_role(
    candidates: Sequence[Candidate],
    cost: RequestCost,
    prefill: Collection[str],
    roles: RoleSettings | None,
    *,
    continues: bool,
) -> Sequence[Candidate]:
    """Keep the engines of the role that fits a request, if there are any; `prefill` are those of that role."""
    if roles is None or not prefill:
        return candidates
    cached = max((each.num_cached_tokens for each in candidates if each.name not in prefill), default=0)
    is_long = not continues and cost.num_prefill_tokens - cached >= roles.min_prompt_tokens
    return [each for each in candidates if (each.name in prefill) == is_long] or candidates
