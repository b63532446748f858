"""Times as text."""

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Write a time since 1970 as RFC 3339 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
