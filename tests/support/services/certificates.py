"""Certificates of services and clients, and clients' TLS contexts that trust one."""

import ssl
import subprocess
from pathlib import Path

import grpc

from rayinfer_deployments.router.tls import HttpTlsFiles


def make_certificate(folder: Path, name: str) -> HttpTlsFiles:
    """Make a certificate for this machine that is its own authority."""
    files = HttpTlsFiles(certificate=str(folder / "cert.pem"), key=str(folder / "key.pem"))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *curve, "-keyout", files.key, "-out", files.certificate, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return files


def trusting(files: HttpTlsFiles, own: HttpTlsFiles | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=Path(files.certificate).read_text())
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def grpc_credentials(files: HttpTlsFiles, own: HttpTlsFiles | None = None) -> grpc.ChannelCredentials:
    pair = (None, None) if own is None else (Path(own.key).read_bytes(), Path(own.certificate).read_bytes())
    return grpc.ssl_channel_credentials(Path(files.certificate).read_bytes(), *pair)
