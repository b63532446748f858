"""Tuning profiles of a service; `cluster/ray_environment.py` has Ray's settings for each."""

from enum import StrEnum


class Profile(StrEnum):
    """Objective that Serve's and the routers' settings are tuned for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"

    @property
    def limits(self) -> dict[str, int]:
        """Return the routers' default settings."""
        return {"stream_interval": 4} if self is Profile.THROUGHPUT else {}
