"""What a service is tuned for; `ray_environment.py` has what Ray needs for it."""

from enum import StrEnum


class Profile(StrEnum):
    """What Serve's settings and the routers' are good for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"

    @property
    def limits(self) -> dict[str, int]:
        """The routers' settings where the operator gives none."""
        return {"stream_interval": 4} if self is Profile.THROUGHPUT else {}
