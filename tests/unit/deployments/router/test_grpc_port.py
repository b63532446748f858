"""TLS of the gRPC port, with the files of the HTTP port."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import grpc
import pytest

from rayinfer.access.access_control import AccessControl
from rayinfer.access.key_table import KeyTable
from rayinfer.errors import AuthenticationFailed, ConfigError, NotReady
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.example_models import example_models
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.methods import SERVICE
from rayinfer.servers.kserve.grpc.server import GrpcLimits
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer_deployments.router.grpc_port import ReloadedGrpcTls, bind_grpc_server
from rayinfer_deployments.router.tls import HttpTlsFiles
from tests.unit.deployments.router.test_tls import make_certificate
from tests.unit.servers.access.conftest import LocalOwner


@contextlib.asynccontextmanager
async def serving(files: HttpTlsFiles):
    service = InferenceService(GenerationService({}, None, None), ModelRepository({}, example_models()))
    server = bind_grpc_server(
        service, ServiceMetrics(), "127.0.0.1", 0, limits=GrpcLimits(), access=CallAccess(), tls=files
    )
    await server.start()
    try:
        yield server.port
    finally:
        await server.close(0)


@contextlib.asynccontextmanager
async def channel_to(port: int, trusted: HttpTlsFiles | None, own: HttpTlsFiles | None = None):
    """Connect anew, over TLS that trusts this certificate, or plain."""
    address, options = f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
    if trusted is None:
        async with grpc.aio.insecure_channel(address, options) as channel:
            yield channel
        return
    async with grpc.aio.secure_channel(address, trusting(trusted, own), options) as channel:
        yield channel


def trusting(files: HttpTlsFiles, own: HttpTlsFiles | None) -> grpc.ChannelCredentials:
    pair = (None, None) if own is None else (Path(own.key).read_bytes(), Path(own.certificate).read_bytes())
    return grpc.ssl_channel_credentials(Path(files.certificate).read_bytes(), *pair)


async def is_live(channel: grpc.aio.Channel) -> bool:
    try:
        answer = await channel.unary_unary(f"/{SERVICE.full_name}/ServerLive")(b"", timeout=5)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return False
        raise
    return bool(pb.ServerLiveResponse.FromString(answer).live)


async def reaches(port: int, trusted: HttpTlsFiles | None, own: HttpTlsFiles | None = None) -> bool:
    async with channel_to(port, trusted, own) as channel:
        return await is_live(channel)


def folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


async def test_the_port_answers_over_tls_only(tmp_path):
    files = make_certificate(folder(tmp_path, "server"), "server")
    other = make_certificate(folder(tmp_path, "other"), "other")
    async with serving(files) as port:
        assert await reaches(port, files)
        assert not await reaches(port, None)
        assert not await reaches(port, other)
        assert await reaches(port, files)


async def test_clients_need_a_certificate_where_an_authority_is_given(tmp_path):
    files = make_certificate(folder(tmp_path, "server"), "server")
    client = make_certificate(folder(tmp_path, "client"), "client")
    other = make_certificate(folder(tmp_path, "other"), "other")
    mutual = HttpTlsFiles(certificate=files.certificate, key=files.key, client_ca=client.certificate)
    async with serving(mutual) as port:
        assert await reaches(port, files, client)
        assert not await reaches(port, files)
        assert not await reaches(port, files, other)


async def test_changed_files_are_used_for_new_connections_while_open_ones_continue(tmp_path):
    files = make_certificate(folder(tmp_path, "server"), "one")
    old = HttpTlsFiles(certificate=str(tmp_path / "old.pem"), key=files.key)
    await asyncio.to_thread(shutil.copyfile, files.certificate, old.certificate)
    async with serving(files) as port, channel_to(port, old) as open_channel:
        assert await is_live(open_channel)
        await asyncio.to_thread(Path(files.key).write_text, "half a")
        assert await reaches(port, old)
        make_certificate(tmp_path / "server", "two")
        assert await reaches(port, files)
        assert not await reaches(port, old)
        assert await is_live(open_channel)


def test_files_that_cannot_be_loaded_are_named(tmp_path):
    files = make_certificate(tmp_path, "one")
    Path(files.certificate).write_text("nothing")
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        ReloadedGrpcTls(files)


async def test_callers_need_a_key_where_there_are_keys(tmp_path):
    access = AccessControl("router", LocalOwner(tmp_path / "keys.jsonl"))
    with pytest.raises(NotReady):
        CallAccess(access).authenticate({}, "127.0.0.1")
    access.authenticator.keys = KeyTable()
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-tenant-id": "team"}):
        for trusts in (False, True):
            with pytest.raises(AuthenticationFailed):
                CallAccess(access, trusts_tenant_header=trusts).authenticate(headers, "127.0.0.1")
    headers = {"x-tenant-id": "team"}
    assert CallAccess(None, trusts_tenant_header=True).authenticate(headers, "127.0.0.1").tenant == "team"
    assert CallAccess(None).authenticate(headers, "127.0.0.1").tenant == ""
