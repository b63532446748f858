"""Certificate of one engine, for TLS beyond loopback; its routers trust no other."""

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCertificate:
    """A self-signed certificate, and its private key, which never leaves the engine's process."""

    certificate: str  # PEM, which routers get through Ray
    key: bytes = field(repr=False)  # PEM

    def server_context(self) -> ssl.SSLContext:
        """Make the TLS context of an engine's listener."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.TemporaryDirectory() as folder:  # which only this user can enter; ssl reads files alone
            path = Path(folder) / "engine.pem"
            path.write_bytes(self.key + self.certificate.encode())
            context.load_cert_chain(path)
        return context


def client_context(certificate: str) -> ssl.SSLContext:
    """Make a router's TLS context, which trusts this certificate alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it names no address: nothing but this certificate is trusted
    context.load_verify_locations(cadata=certificate)
    return context
