import asyncio
import contextlib
import ssl
from pathlib import Path

import httpx
import pytest

from rayinfer.errors import ConfigError
from rayinfer_deployments.router.http_server import HttpServer
from rayinfer_deployments.router.tls import HttpTlsFiles, ReloadedTls
from support.services.certificates import make_certificate, trusting
from tests.unit.deployments.router.test_http_server import port as port


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first ", "more_body": True})
    if scope["path"] == "/long":
        await asyncio.sleep(1.0)
    await send({"type": "http.response.body", "body": scope["scheme"].encode()})


@contextlib.asynccontextmanager
async def serving(files: HttpTlsFiles, port: int):
    tls = ReloadedTls(files, check_s=0.1)
    server, following = HttpServer(app, "127.0.0.1", port, tls=tls), asyncio.create_task(tls.follow())
    try:
        yield
    finally:
        following.cancel()
        await server.close(grace_s=0.1)


async def get(port: int, path: str, context: ssl.SSLContext) -> str:
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=5) as client:
        return (await client.get(f"https://127.0.0.1:{port}{path}")).text


async def test_a_changed_certificate_is_used_for_new_connections_while_streams_continue(tmp_path, port):
    files = make_certificate(tmp_path, "one")
    first = trusting(files)
    async with serving(files, port):
        long = asyncio.create_task(get(port, "/long", first))
        assert await get(port, "/", first) == "first https"
        await asyncio.to_thread(
            Path(files.key).write_text, "half a"
        )  # of two files that are written one after the other
        await asyncio.sleep(0.25)
        assert await get(port, "/", first) == "first https"
        make_certificate(tmp_path, "two")
        second = trusting(files)
        async with asyncio.timeout(5):
            while True:
                with contextlib.suppress(httpx.ConnectError):
                    await get(port, "/", second)
                    break
                await asyncio.sleep(0.02)
        with pytest.raises(httpx.ConnectError):
            await get(port, "/", first)
        assert await long == "first https"


async def test_clients_need_a_certificate_where_an_authority_is_given(tmp_path, port):
    (tmp_path / "client").mkdir()
    (tmp_path / "other").mkdir()
    files, client = make_certificate(tmp_path, "server"), make_certificate(tmp_path / "client", "client")
    other = make_certificate(tmp_path / "other", "other")
    mutual = HttpTlsFiles(certificate=files.certificate, key=files.key, client_ca=client.certificate)
    async with serving(mutual, port):
        assert await get(port, "/", trusting(files, client)) == "first https"
        for wrong in (None, other):
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                await get(port, "/", trusting(files, wrong))
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            async with httpx.AsyncClient(trust_env=False, timeout=5) as plain:
                await plain.get(f"http://127.0.0.1:{port}/")
        assert await get(port, "/", trusting(files, client)) == "first https"


@pytest.mark.parametrize("damage", ["missing", "no certificate", "other key"])
def test_files_that_cannot_be_loaded_are_named(tmp_path, damage):
    files = make_certificate(tmp_path, "one")
    if damage == "missing":
        Path(files.key).unlink()
    elif damage == "no certificate":
        Path(files.certificate).write_text("nothing")
    else:
        certificate = Path(files.certificate).read_text()
        make_certificate(tmp_path, "two")
        Path(files.certificate).write_text(certificate)
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        ReloadedTls(files)
