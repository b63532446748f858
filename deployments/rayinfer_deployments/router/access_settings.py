"""Settings of routers that concern clients' access."""

from dataclasses import dataclass

from rayinfer_deployments.router.tls import HttpTlsFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessSettings:
    """Keys, prices, log and TLS of a router."""

    key_file: str | None = None  # None: the service is open
    price_per_engine_hour: float = 0.0
    log: str | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    tls: HttpTlsFiles | None = None
