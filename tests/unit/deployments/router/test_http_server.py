import asyncio
import socket

import httpx
import pytest

from rayinfer.errors import RayinferError
from rayinfer_deployments.router.http_server import HttpServer
from support.services.free_ports import free_port


async def slow_app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first ", "more_body": True})
    await asyncio.sleep(0.2 if scope["path"] == "/short" else 60.0)
    await send({"type": "http.response.body", "body": b"last"})


@pytest.fixture
def port():
    return free_port()


async def ask(port, path):
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        return (await client.get(f"http://127.0.0.1:{port}{path}")).text


async def test_a_header_does_not_change_the_address_of_a_client(port):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["client"][0].encode()})

    server = HttpServer(app, "127.0.0.1", port)
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        response = await client.get(f"http://127.0.0.1:{port}/", headers={"X-Forwarded-For": "9.9.9.9"})
    assert response.text == "127.0.0.1"
    await server.close(grace_s=0.1)


async def test_a_response_in_flight_is_finished_before_the_server_closes(port):
    server = HttpServer(slow_app, "127.0.0.1", port)
    asking = asyncio.create_task(ask(port, "/short"))
    await asyncio.sleep(0.1)
    await server.close(grace_s=5.0)
    assert await asking == "first last"
    with pytest.raises(httpx.ConnectError):
        await ask(port, "/short")


async def test_an_answer_that_outlasts_the_grace_is_cut(port):
    server = HttpServer(slow_app, "127.0.0.1", port)
    asking = asyncio.create_task(ask(port, "/long"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5.0):
        await server.close(grace_s=0.1)
    asking.cancel()


async def test_an_address_that_another_process_has_is_said(port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(RayinferError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            HttpServer(slow_app, "127.0.0.1", port)


async def test_requests_on_open_and_new_connections_are_answered_while_the_server_closes(port):
    server = HttpServer(slow_app, "127.0.0.1", port)
    async with httpx.AsyncClient(trust_env=False, timeout=5, base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/short")).headers.get("connection") != "close"
        # Connected, but not yet taken by the server, whose loop gets no turn before it closes.
        newcomer = socket.create_connection(("127.0.0.1", port))
        newcomer.sendall(b"GET /short HTTP/1.1\r\nhost: here\r\n\r\n")
        closing = asyncio.create_task(server.close(grace_s=5.0))
        await asyncio.sleep(0)
        late = await client.get("/short")
        assert (late.text, late.headers["connection"]) == ("first last", "close")
        newcomer.setblocking(False)
        answer = b""
        async with asyncio.timeout(5):
            while chunk := await asyncio.get_running_loop().sock_recv(newcomer, 4096):
                answer += chunk
        newcomer.close()
        assert b"200 OK" in answer
        assert b"last" in answer
        await closing


async def test_a_server_that_never_started_closes(port):
    await HttpServer(slow_app, "127.0.0.1", port).close(grace_s=1.0)
