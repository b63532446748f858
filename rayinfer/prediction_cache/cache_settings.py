"""Settings of a router's cache of predictions."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT_CACHE_BYTES = 64 * 2**20
SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionCacheSettings:
    """Its size in memory, and the Redis behind it."""

    max_bytes: int = DEFAULT_CACHE_BYTES  # 0: no cache
    url: str | None = field(default=None, repr=False)  # it may hold a password
    secret_file: str | None = None


NO_PREDICTION_CACHE = PredictionCacheSettings(max_bytes=0)


def checked_url(url: str) -> str:
    """Return the URL of a Redis; raises ValueError, without what may be a password."""
    parts = urlsplit(url)
    is_unix = parts.scheme == "unix"
    if parts.scheme not in SCHEMES or not (parts.path if is_unix else parts.hostname):
        raise ValueError("prediction_cache_url must be redis://HOST, rediss://HOST (TLS) or unix:///PATH")
    return url
