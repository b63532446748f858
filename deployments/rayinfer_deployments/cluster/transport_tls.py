"""TLS for the connections between routers and engines.

Where Ray itself uses TLS they have the same certificates, on both ends. Elsewhere a connection beyond loopback has a
certificate of the engine's own, which is sent to routers through Ray; on loopback it is plain.
"""

import importlib
import ipaddress
import ssl

from rayinfer.kv_transfer.engine_transfers import ServerTls
from rayinfer.protocols import EngineClient
from rayinfer.transport.engine_certificate import EngineCertificate, client_context
from rayinfer.transport.engine_server import EngineServer
from rayinfer_deployments.cluster.ray_environment import TlsFiles, ray_tls_files

SELF_SIGNED = "rayinfer.transport.self_signed"  # imported once it is needed, which it is beyond loopback alone


def make_engine_server(engine: EngineClient, host: str) -> EngineServer:
    """Make the server that listens for routers on one of this machine's addresses."""
    tls = server_tls()
    certificate = None if tls is not None or is_loopback(host) else _make_certificate()
    return EngineServer(engine, tls=tls, certificate=certificate)


def kv_server_tls(host: str) -> ServerTls:
    """Make the TLS of a server of KV blocks, as `make_engine_server` makes that of the engine's."""
    tls = server_tls()
    if tls is not None or is_loopback(host):
        return ServerTls(context=tls)
    certificate = _make_certificate()
    return ServerTls(context=certificate.server_context(), certificate=certificate.certificate)


def kv_client_tls(certificate: str) -> ssl.SSLContext | None:
    """Make the TLS of a connection to such a server."""
    return client_context(certificate) if certificate else client_tls()


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def server_tls() -> ssl.SSLContext | None:
    """Make the TLS context of an engine's listener; None where Ray uses no TLS."""
    return _context(ssl.PROTOCOL_TLS_SERVER)


def client_tls() -> ssl.SSLContext | None:
    """Make the TLS context of a router's connections; None where Ray uses no TLS."""
    return _context(ssl.PROTOCOL_TLS_CLIENT)


def _make_certificate() -> EngineCertificate:
    certificate: EngineCertificate = importlib.import_module(SELF_SIGNED).make_certificate()
    return certificate


def _context(protocol: int) -> ssl.SSLContext | None:
    files: TlsFiles | None = ray_tls_files()
    if files is None:
        return None
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # cluster certificates name no addresses; having one proves membership
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key)
    return context
