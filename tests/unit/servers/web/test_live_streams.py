"""Limit on the open streams of the live view."""

import asyncio
import contextlib

import httpx
import pytest

from rayinfer.errors import Unavailable
from rayinfer.servers.web.live_streams import MAX_STREAMS_PER_ADDRESS, RETRY_S, LiveResponse, LiveStreams
from support.services.served_application import served

FREED_S = 10.0  # before the others end by themselves, after 15 s


@contextlib.asynccontextmanager
async def clients_of(app):
    """Serve an application; yields a function that opens a stream."""
    limits = httpx.Limits(max_connections=None)
    with served(app) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False, limits=limits) as client:

            async def connect() -> httpx.Response:
                return await client.send(client.build_request("GET", "/live"), stream=True)

            yield connect


async def connect_within(connect, seconds):
    """Connect again while the service refuses; returns the last response."""
    async with asyncio.timeout(seconds):
        while (response := await connect()).status_code == 503:
            await response.aclose()
            await asyncio.sleep(0.05)
        return response


async def test_streams_of_an_address_beyond_the_limit_are_refused_until_a_client_leaves(app):
    async with clients_of(app) as connect:
        opened = [await connect() for _ in range(MAX_STREAMS_PER_ADDRESS)]
        assert {response.status_code for response in opened} == {200}
        refused = await connect()
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == str(int(RETRY_S))
        await refused.aread()
        assert refused.json()["error"]["code"] == "unavailable"
        await opened[-1].aclose()
        assert (await connect_within(connect, FREED_S)).status_code == 200
        for response in opened[:-1]:  # none of them was ended
            assert (await anext(response.aiter_lines())).startswith("data: ")


async def test_a_stream_that_ends_makes_room():
    async def events():
        yield b"data: {}\n\n"

    streams = LiveStreams(max_streams=1, max_per_address=1)
    for _ in range(3):
        transport = httpx.ASGITransport(LiveResponse(events(), streams, "a"))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            assert (await client.get("/live")).content == b"data: {}\n\n"


def test_each_address_has_a_limit_and_the_router_one_for_all():
    streams = LiveStreams(max_streams=3, max_per_address=2)
    with contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(streams.open("a"))
        with pytest.raises(Unavailable, match="from this address"), streams.open("a"):
            pass
        held.enter_context(streams.open("b"))
        with pytest.raises(Unavailable, match=r"open\.$"), streams.open("c"):
            pass


def test_places_are_free_again_however_a_stream_ends():
    streams = LiveStreams(max_streams=1, max_per_address=1)
    for error in (asyncio.CancelledError, OSError):
        with pytest.raises(error), streams.open("a"):
            raise error
    with streams.open("b"):
        pass
