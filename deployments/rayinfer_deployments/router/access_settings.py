"""Settings of routers that concern clients' access."""

from dataclasses import dataclass

from rayinfer.images.fetching.media_settings import NO_MEDIA, MediaSettings
from rayinfer_deployments.router.tls import HttpTlsFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessSettings:
    """Keys, prices, log and TLS of a router, and what operators and browsers may do."""

    key_file: str | None = None  # None: the service is open
    price_per_engine_hour: float = 0.0
    log: str | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    is_local: bool = False  # whether the routers' own port is on loopback
    media: MediaSettings = NO_MEDIA  # hosts that images are fetched from
    trace_prompts: bool = False
    opens_load: bool = False  # /metrics/load without a key
    control_socket: str | None = None  # of the process that runs operators' commands; None: the command does
    tls: HttpTlsFiles | None = None
