"""API keys: secrets of clients, each with a tenant, scopes and limits."""

import hashlib
import re
import secrets
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from rayinfer.errors import ConfigError
from rayinfer.setting_names import describe_validation_error

PREFIX = "ri-"
SECRET_BYTES = 32
MIN_SECRET_CHARS = 16  # of keys that were not made here
MAX_SECRET_CHARS = 512
NAME_PATTERN = r"[A-Za-z0-9._:@/-]{1,128}"
MOST_URGENT, LEAST_URGENT = -10, 10
ENVIRONMENT_KEY_ID = "environment-{}"


def _checked_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError("must be 1 to 128 letters, digits and . _ : @ / -")
    return name


Name = Annotated[str, AfterValidator(_checked_name)]


class Scope(StrEnum):
    """Permission of a key."""

    INFER = "infer"  # generate, list models, read its own usage and its tenant's traces
    METRICS = "metrics"  # read /metrics
    OPERATE = "operate"  # control engines, read the usage of all keys and the traces of all tenants


class KeyLimits(BaseModel):
    """Limits of one key; None for no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: int | None = Field(default=None, ge=1, description="requests a minute")
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="tokens of prompts and answers a minute, of these max_tokens from the begin"
    )
    concurrent_requests: int | None = Field(
        default=None, ge=1, description="sequences (prompts times n) at the same time"
    )
    max_context: int | None = Field(default=None, ge=2, description="tokens of a prompt and its answer together")
    max_tokens: int | None = Field(default=None, ge=1, description="tokens of one answer")
    output_tokens_per_day: int | None = Field(default=None, ge=1, description="tokens of answers a day (UTC)")
    most_urgent: int = Field(default=MOST_URGENT, ge=MOST_URGENT, le=LEAST_URGENT, description="lowest priority number")
    least_urgent: int = Field(
        default=LEAST_URGENT, ge=MOST_URGENT, le=LEAST_URGENT, description="highest priority number"
    )
    models: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None, description="models that it may use"
    )

    def allows_model(self, model: str) -> bool:
        """Return whether the key may use a model."""
        return self.models is None or model in self.models


class ApiKey(BaseModel):
    """An API key as it is stored: with the digest of its secret, never the secret."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_id: Name
    name: Name
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: Name
    weight: float = Field(default=1.0, ge=1e-6, le=1e6)
    scopes: frozenset[Scope] = frozenset({Scope.INFER})
    limits: KeyLimits = KeyLimits()
    created_s: float = 0.0  # since 1970
    revoked_s: float | None = None

    @field_validator("limits")
    @classmethod
    def _priorities_are_in_order(cls, limits: KeyLimits) -> KeyLimits:
        if limits.most_urgent > limits.least_urgent:
            raise ValueError(
                f"most_urgent {limits.most_urgent} is above least_urgent {limits.least_urgent}: lower is more urgent"
            )
        return limits

    @property
    def digest(self) -> bytes:
        """Return the digest of the secret."""
        return bytes.fromhex(self.sha256)

    def line(self) -> str:
        """Write the key as a line of a key file."""
        return self.model_dump_json(exclude_defaults=True)


def new_secret() -> str:
    """Make a secret of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 of a secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def parse_key(line: str) -> ApiKey:
    """Read a line of a key file; raises ConfigError."""
    try:
        return ApiKey.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None


def key_limits(**limits: Any) -> KeyLimits:
    """Check the limits of a new key; raises ConfigError."""
    try:
        return KeyLimits(**limits)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None


def scopes_of(names: Iterable[str]) -> list[Scope]:
    """Return scopes by their names; raises ConfigError."""
    names = list(names)
    if unknown := [name for name in names if name not in list(Scope)]:
        raise ConfigError(f"no scope {unknown[0]!r}: choose {', '.join(Scope)}")
    return [Scope(name) for name in names]


def new_key(**fields: Any) -> ApiKey:
    """Check the fields of a new key; raises ConfigError."""
    try:
        return ApiKey(**fields)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None


def environment_keys(secrets_given: Iterable[str]) -> list[ApiKey]:
    """Make keys of secrets that the environment gives, optionally as NAME=SECRET; raises ConfigError for weak ones."""
    keys: list[ApiKey] = []
    for number, given in enumerate(secrets_given, 1):
        name, sign, secret = given.partition("=")
        if not sign or len(secret) < MIN_SECRET_CHARS or not re.fullmatch(NAME_PATTERN, name):
            name, secret = ENVIRONMENT_KEY_ID.format(number), given
        if not MIN_SECRET_CHARS <= len(secret) <= MAX_SECRET_CHARS:
            raise ConfigError(
                f"RAYINFER_API_KEYS: key {number} must have {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} characters"
            )
        scopes = frozenset({Scope.INFER, Scope.METRICS})
        keys.append(ApiKey(key_id=name, name=name, sha256=digest_of(secret).hex(), tenant=name, scopes=scopes))
    names = [key.name for key in keys]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"RAYINFER_API_KEYS: names must differ, got twice: {', '.join(twice)}")
    return keys
