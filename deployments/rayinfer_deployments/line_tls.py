"""TLS for the lines between routers and engines, where Ray itself speaks TLS: the same certificates, on both ends."""

import ssl

from rayinfer_deployments.ray_environment import TlsFiles, ray_tls_files


def line_server_tls() -> ssl.SSLContext | None:
    """Make what an engine listens with; None where Ray speaks plainly, too."""
    return _context(ssl.PROTOCOL_TLS_SERVER)


def line_client_tls() -> ssl.SSLContext | None:
    """Make what a router connects with; None where Ray speaks plainly, too."""
    return _context(ssl.PROTOCOL_TLS_CLIENT)


def _context(protocol: int) -> ssl.SSLContext | None:
    files: TlsFiles | None = ray_tls_files()
    if files is None:
        return None
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # certificates of clusters name no addresses; whoever has one belongs to the cluster
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key)
    return context
