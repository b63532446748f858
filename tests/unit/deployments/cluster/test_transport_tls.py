"""Lines between routers and engines are encrypted where Ray's are, and where they leave the machine."""

import asyncio
import contextlib
import datetime
import ssl
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rayinfer.errors import EngineDead
from rayinfer.liveness import LivenessLimits
from rayinfer.transport.engine_certificate import client_context
from rayinfer.transport.engine_connection import EngineConnection
from rayinfer.transport.engine_server import EngineServer
from rayinfer.transport.self_signed import make_certificate
from rayinfer_deployments.cluster.transport_tls import client_tls, make_engine_server, server_tls
from support.fakes.fake_engine_client import FakeEngineClient

HOST = "127.0.0.1"
OTHER_NODE = "127.0.0.2"


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
    assert server_tls() is None
    assert client_tls() is None


async def test_both_ends_speak_tls_with_rays_files(tmp_path, use_files):
    use_files(certificate_files(tmp_path / "ours", "ours"))
    assert (await first_message(server_tls(), client_tls())).deltas == []
    with pytest.raises(EngineDead):
        await first_message(server_tls(), None)


@pytest.mark.parametrize("stranger", ["router", "engine"])
async def test_a_client_of_another_cluster_is_refused(tmp_path, use_files, stranger):
    use_files(certificate_files(tmp_path / "ours", "ours"))
    server, client = server_tls(), client_tls()
    use_files(certificate_files(tmp_path / "others", "others"))
    if stranger == "router":
        client = client_tls()
        client.verify_mode = ssl.CERT_NONE  # a client that verifies nothing is still refused
    else:
        server = server_tls()
        server.verify_mode = ssl.CERT_NONE
    with pytest.raises(EngineDead):
        await first_message(server, client)


@contextlib.asynccontextmanager
async def engine_of_another_node(host=OTHER_NODE, max_unauthenticated=64, **limits):
    """An engine with a certificate of its own, at an address that stands for another machine's."""
    engine = FakeEngineClient()
    engine.say()
    server = EngineServer(
        engine,
        certificate=make_certificate(),
        limits=LivenessLimits(**limits),
        max_unauthenticated=max_unauthenticated,
    )
    try:
        yield engine, await server.start(host)
    finally:
        await asyncio.wait_for(server.close(), 10)


def router_to(address):
    async def find():
        return address

    return EngineConnection(find)


async def first_of(router):
    async with asyncio.timeout(10):
        return await anext(router.outputs("r"))


async def test_a_connection_between_nodes_uses_tls_with_the_engines_own_certificate():
    async with engine_of_another_node() as (_, address):
        assert (await first_of(router_to(address))).deltas == []
        _, writer = await asyncio.open_connection(OTHER_NODE, address.port, ssl=client_context(address.certificate))
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.close()


async def test_an_engine_with_another_certificate_is_refused():
    async with engine_of_another_node() as (_, expected), engine_of_another_node(HOST) as (stranger, other):
        misled = replace(other, certificate=expected.certificate, key=other.key)
        with pytest.raises(EngineDead, match="CERTIFICATE_VERIFY_FAILED"):
            await first_of(router_to(misled))
        assert not stranger.is_listened_to


@pytest.mark.parametrize("changes", [{"certificate": ""}, {"key": bytes(32)}])
async def test_a_router_without_tls_or_key_receives_nothing(changes):
    async with engine_of_another_node() as (engine, address):
        with pytest.raises(EngineDead):
            await first_of(router_to(replace(address, **changes)))
        assert not engine.is_listened_to


async def test_a_router_connects_while_silent_clients_use_all_connections():
    async with engine_of_another_node(max_unauthenticated=4) as (_, address):
        silent = [await asyncio.open_connection(OTHER_NODE, address.port) for _ in range(12)]
        async with asyncio.timeout(5):  # half of what a silent client has
            assert (await first_of(router_to(address))).deltas == []
            for reader, _ in silent[:8]:  # replaced by newer ones
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


async def test_an_authenticated_router_stays_connected_while_silent_clients_connect():
    async with engine_of_another_node(max_unauthenticated=4) as (engine, address), asyncio.timeout(10):
        outputs = router_to(address).outputs("r")
        assert (await anext(outputs)).deltas == []
        silent = [await asyncio.open_connection(OTHER_NODE, address.port) for _ in range(12)]
        for reader, _ in silent[:8]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        engine.say()
        assert await anext(outputs) is not None
        for _, writer in silent:
            writer.close()


async def test_a_silent_client_is_disconnected_after_the_timeout():
    async with engine_of_another_node(server_hello_timeout_s=0.2) as (_, address):
        silent, plain_writer = await asyncio.open_connection(OTHER_NODE, address.port)
        encrypted, tls_writer = await asyncio.open_connection(
            OTHER_NODE, address.port, ssl=client_context(address.certificate)
        )
        async with asyncio.timeout(10):
            for reader in (silent, encrypted):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        plain_writer.close()
        tls_writer.close()


@pytest.mark.parametrize(
    ("host", "is_encrypted"), [("127.0.0.1", False), ("127.0.0.2", False), ("::1", False), ("192.0.2.7", True)]
)
def test_a_connection_is_plain_on_loopback_only(monkeypatch, host, is_encrypted):
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    assert (make_engine_server(FakeEngineClient(), host).certificate != "") == is_encrypted
