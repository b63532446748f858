"""The certificate of one engine, with which its line speaks TLS beyond loopback; routers trust it and no other."""

import datetime
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

COMMON_NAME = "rayinfer engine"
VALID = datetime.timedelta(days=3650)  # longer than any engine runs
CLOCKS_DIFFER = datetime.timedelta(days=1)  # at most, between two nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class LineCertificate:
    """A certificate that vouches for itself, and its key; the key never leaves the engine's process."""

    certificate: str  # PEM, which routers are told through Ray
    key: bytes = field(repr=False)  # PEM

    def server_context(self) -> ssl.SSLContext:
        """Make what an engine listens with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.TemporaryDirectory() as folder:  # which only this user can enter; ssl reads files alone
            path = Path(folder) / "engine.pem"
            path.write_bytes(self.key + self.certificate.encode())
            context.load_cert_chain(path)
        return context


def make_line_certificate() -> LineCertificate:
    """Draw a key and sign a certificate with it."""
    # Only engines that are reached from other machines need these.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, COMMON_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return LineCertificate(
        certificate=certificate.public_bytes(pem).decode(),
        key=key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    )


def client_context(certificate: str) -> ssl.SSLContext:
    """Make what a router connects with to the one engine that has this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it names no address: nothing but this certificate is trusted
    context.load_verify_locations(cadata=certificate)
    return context
