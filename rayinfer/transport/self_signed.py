"""Self-signed certificates of engines; imported only where one is needed, as `cryptography` loads slowly."""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rayinfer.transport.engine_certificate import EngineCertificate

COMMON_NAME = "rayinfer engine"
VALID = datetime.timedelta(days=3650)  # longer than any engine runs
CLOCKS_DIFFER = datetime.timedelta(days=1)  # at most, between two nodes


def make_certificate() -> EngineCertificate:
    """Generate a key and sign a certificate with it."""
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
    return EngineCertificate(
        certificate=certificate.public_bytes(pem).decode(),
        key=key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    )
