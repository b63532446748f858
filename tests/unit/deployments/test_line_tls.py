"""Lines between routers and engines are encrypted where Ray's are."""

import asyncio
import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fake_engine_client import FakeEngineClient
from rayinfer.errors import EngineDead
from rayinfer.transport.engine_connection import EngineConnection
from rayinfer.transport.engine_server import EngineServer
from rayinfer_deployments.line_tls import line_client_tls, line_server_tls

HOST = "127.0.0.1"


def certificate_files(folder, name):
    """A certificate that vouches for itself, as the authority of its own cluster."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return folder


@pytest.fixture
def use_files(monkeypatch):
    def use(folder):
        monkeypatch.setenv("RAY_USE_TLS", "1")
        monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(folder / "certificate.pem"))
        monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(folder / "key.pem"))
        monkeypatch.setenv("RAY_TLS_CA_CERT", str(folder / "certificate.pem"))

    return use


async def first_message(server_tls, client_tls):
    engine = FakeEngineClient()
    engine.say()
    server = EngineServer(engine, tls=server_tls)
    address = await server.start(HOST)

    async def find():
        return address

    try:
        async with asyncio.timeout(10):
            return await anext(EngineConnection(find, tls=client_tls).outputs("r"))
    finally:
        await server.close()


def test_there_is_no_tls_where_ray_has_none(monkeypatch):
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    assert line_server_tls() is None
    assert line_client_tls() is None


async def test_both_ends_speak_tls_with_rays_files(tmp_path, use_files):
    use_files(certificate_files(tmp_path / "ours", "ours"))
    assert (await first_message(line_server_tls(), line_client_tls())).step == 1
    with pytest.raises(EngineDead):
        await first_message(line_server_tls(), None)


@pytest.mark.parametrize("stranger", ["router", "engine"])
async def test_who_belongs_to_another_cluster_is_not_let_in(tmp_path, use_files, stranger):
    use_files(certificate_files(tmp_path / "ours", "ours"))
    server, client = line_server_tls(), line_client_tls()
    use_files(certificate_files(tmp_path / "others", "others"))
    if stranger == "router":
        client = line_client_tls()
        client.verify_mode = ssl.CERT_NONE  # who minds nothing is still not let in
    else:
        server = line_server_tls()
        server.verify_mode = ssl.CERT_NONE
    with pytest.raises(EngineDead):
        await first_message(server, client)
