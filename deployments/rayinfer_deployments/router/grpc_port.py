"""The router's gRPC port, whose TLS has the files of the HTTP port."""

import logging
from pathlib import Path

import grpc

from rayinfer.errors import ConfigError
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.server import GrpcLimits, GrpcServer
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer_deployments.router.tls import HttpTlsFiles

logger = logging.getLogger("ray.serve")


def bind_grpc_server(
    service: InferenceService,
    metrics: ServiceMetrics,
    host: str,
    port: int,
    *,
    limits: GrpcLimits,
    access: CallAccess,
    tls: HttpTlsFiles | None,
) -> GrpcServer:
    """Bind a server that has yet to start, over TLS where there are files for it; raises RayinferError."""
    return GrpcServer(
        service,
        metrics,
        host,
        port,
        limits=limits,
        access=access,
        credentials=None if tls is None else ReloadedGrpcTls(tls).credentials,
    )


class ReloadedGrpcTls:
    """Credentials of a gRPC server; each new connection gets the files' latest content, open ones continue."""

    def __init__(self, files: HttpTlsFiles) -> None:
        """Load the files; raises ConfigError."""
        self._files = files
        self._stamp = files.stamp()
        self.credentials = grpc.dynamic_ssl_server_credentials(
            _load(files), self._changed, require_client_authentication=files.client_ca is not None
        )

    def _changed(self) -> "grpc.ServerCertificateConfiguration | None":
        """Return the files' content where it has changed and is valid; called before every handshake."""
        stamp = self._files.stamp()
        if not stamp or stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            return _load(self._files)
        except ConfigError as error:
            logger.error("the old TLS certificate is kept for gRPC: %s", error)
            return None


def _load(files: HttpTlsFiles) -> "grpc.ServerCertificateConfiguration":
    """Read the files, checked as those of HTTP are; raises ConfigError."""
    files.context()
    try:
        key, certificate = Path(files.key).read_bytes(), Path(files.certificate).read_bytes()
        authorities = None if files.client_ca is None else Path(files.client_ca).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS files: {error}") from None
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authorities)
