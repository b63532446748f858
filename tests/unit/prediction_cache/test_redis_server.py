"""The cache over a real Redis, which is killed, frozen, full and filled with garbage."""

import asyncio
import importlib
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.circuit_breaker import MAX_FAILURES, OPEN_S
from rayinfer.prediction_cache.redis_cache import RedisCache
from rayinfer.prediction_cache.redis_claims import CLAIM_S
from rayinfer.prediction_cache.redis_connection import TIMEOUT_S, RedisConnection
from support.fakes.cached_service import CachedService
from support.services.certificates import make_certificate
from support.services.free_ports import free_port
from support.services.polling import until

pytestmark = pytest.mark.redis
PASSWORD = "p4ss/word"
PATIENT_S = 5.0  # where no time limit is tested: a busy machine answers late


class RedisServer:
    """A redis-server on a free port, without files of its own."""

    def __init__(self, *options, port_option="--port"):
        program = shutil.which("redis-server")
        assert program, "make test-redis needs redis-server on the PATH"
        self.port = free_port()
        self._command = [program, "--save", "", "--requirepass", PASSWORD, *options, port_option, str(self.port)]
        self.start()

    @property
    def url(self):
        return f"redis://:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{self.port}/0"

    def start(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.01)

    def signal(self, number):
        os.kill(self._process.pid, number)

    def kill(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server():
    server = RedisServer()
    yield server
    server.kill()


class Routers:
    """Routers that share a Redis; all their connections are closed at the end."""

    def __init__(self, url):
        self._url = url
        self._services = []

    async def __aenter__(self):
        return self

    def add(self, url=None, timeout_s=PATIENT_S):
        service = CachedService(RedisConnection(url or self._url, timeout_s), timeout_s=timeout_s)
        self._services.append(service)
        return service

    async def __aexit__(self, *error):
        await asyncio.gather(*(service.redis.close() for service in self._services))


async def slowest_s(service, first, count=50):
    """Return the longest time that one of some new items takes."""
    slowest = 0.0
    for index in range(first, first + count):
        started = time.perf_counter()
        await service.ask(str(index), [index])
        slowest = max(slowest, time.perf_counter() - started)
    return slowest


async def is_shared(routers, token_ids):
    """Whether a new router finds an item in Redis."""
    service = routers.add()
    await service.ask("asked", token_ids)
    return not service.predictor.started


async def test_routers_share_items_over_a_real_redis(server):
    async with Routers(server.url) as routers:
        first = routers.add()
        numbers = await asyncio.gather(*(first.number(str(index), [index]) for index in range(200)))
        second = routers.add()
        await asyncio.sleep(0.2)
        assert await asyncio.gather(*(second.number(str(index), [index]) for index in range(200))) == numbers
        assert second.predictor.started == []
        assert first.counts.redis_errors == second.counts.redis_errors == {}


async def test_64_equal_items_at_once_through_two_routers_are_computed_once(server):
    async with Routers(server.url) as routers:
        services = [routers.add(), routers.add()]
        for service in services:
            await service.ask("connected", [1000 + services.index(service)])  # connections are open
        asked = [services[number % 2].number(str(number), [7]) for number in range(64)]
        assert len(set(await asyncio.gather(*asked))) == 1
        assert sum(len(service.predictor.started) for service in services) == 2 + 1
        assert [service.counts.redis_errors for service in services] == [{}, {}]


async def test_a_claim_of_a_router_that_died_lapses(server):
    async with Routers(server.url) as routers:
        first, second = routers.add(), routers.add()
        first.predictor.is_open.clear()
        leading = asyncio.create_task(first.ask("leads", [7]))
        await until(lambda: first.predictor.started)
        await first.redis.close()  # it renews its claim no more
        started = time.perf_counter()
        await second.ask("follows", [7])
        assert time.perf_counter() - started < CLAIM_S + 1
        assert second.predictor.started == ["follows"]
        first.predictor.is_open.set()
        await leading


async def test_a_redis_that_is_killed_while_a_router_waits_has_the_item_computed(server):
    async with Routers(server.url) as routers:
        first, second = routers.add(), routers.add()
        first.predictor.is_open.clear()
        leading = asyncio.create_task(first.ask("leads", [7]))
        await until(lambda: first.predictor.started)
        following = asyncio.create_task(second.ask("follows", [7]))
        await asyncio.sleep(0.1)
        assert not second.predictor.started
        server.kill()
        assert (await following).prediction is not None
        assert second.predictor.started == ["follows"]
        first.predictor.is_open.set()
        await leading
        server.start()


async def test_a_redis_that_is_killed_under_load_loses_no_answer(server):
    async with Routers(server.url) as routers:
        service = routers.add()
        for round_number in range(3):
            asked = [
                asyncio.create_task(service.ask(f"{round_number}-{index}", [round_number, index]))
                for index in range(100)
            ]
            await asyncio.sleep(0)
            server.kill()
            assert len({output.prediction for output in await asyncio.gather(*asked)}) == 100
            await slowest_s(service, 1000 * (round_number + 1), MAX_FAILURES)
            assert service.counts.breaker_state == "open"
            server.start()
            await asyncio.sleep(OPEN_S)  # from before its start: the next command is a probe
            await service.ask("probe", [round_number + 10**6])
            assert service.counts.breaker_state == "closed"
            await service.ask("kept", [round_number + 2 * 10**6])
            await asyncio.sleep(0.2)
            assert await is_shared(routers, [round_number + 2 * 10**6])


async def test_a_frozen_redis_costs_less_than_5_ms_once_the_breaker_is_open(server):
    async with Routers(server.url) as routers:
        service = routers.add(timeout_s=TIMEOUT_S)
        await service.ask("first", [1])
        server.signal(signal.SIGSTOP)
        try:
            assert await slowest_s(service, 100, MAX_FAILURES) < 1.0
            assert service.counts.breaker_state == "open"
            assert await slowest_s(service, 200) < 0.005
        finally:
            server.signal(signal.SIGCONT)


async def test_garbage_and_values_of_other_types_are_misses(server):
    async with Routers(server.url) as routers:
        await routers.add().ask("a", [1])
        await asyncio.sleep(0.2)
        client = importlib.import_module("redis.asyncio").Redis.from_url(server.url)
        (name,) = await client.keys("*")
        payload = await client.get(name)
        for damage in (b"", b"x" * 5000, payload[:-1], payload + b"x"):
            await client.set(name, damage)
            assert not await is_shared(routers, [1])
            await asyncio.sleep(0.1)  # it is written again
            assert await is_shared(routers, [1])
        await client.delete(name)
        await client.lpush(name, b"a list")
        assert not await is_shared(routers, [1])
        await client.aclose()


async def test_a_full_redis_is_still_read(server):
    async with Routers(server.url) as routers:
        await routers.add().ask("kept", [1])
        await asyncio.sleep(0.2)
        client = importlib.import_module("redis.asyncio").Redis.from_url(server.url)
        await client.config_set("maxmemory", "1")
        service = routers.add()
        for index in range(2 * MAX_FAILURES):
            await service.ask(str(index), [index + 100])
        await until(lambda: service.counts.redis_errors.get("refused") == 2 * MAX_FAILURES)
        assert service.counts.breaker_state == "closed"
        assert await is_shared(routers, [1])
        await client.aclose()


async def test_redis_is_reached_by_tls(tmp_path):
    files = make_certificate(tmp_path, "redis")
    tls = ("--port", "0", "--tls-cert-file", files.certificate, "--tls-key-file", files.key, "--tls-auth-clients", "no")
    server = RedisServer(*tls, port_option="--tls-port")
    try:
        url = f"{server.url.replace('redis://', 'rediss://')}?ssl_ca_certs={files.certificate}"
        async with Routers(url) as routers:
            await routers.add().ask("kept", [1])
            await asyncio.sleep(0.2)
            assert await is_shared(routers, [1])
    finally:
        server.kill()


async def test_a_wrong_password_is_a_failure_and_no_more(server):
    async with Routers(server.url) as routers:
        service = routers.add(server.url.replace("word", "other"))
        assert [await service.number(str(index), [index]) for index in range(10)] == list(range(1, 11))
        assert service.counts.breaker_state == "open"


async def test_no_more_connections_than_the_pool_has_are_opened(server):
    async with Routers(server.url) as routers:
        service = routers.add()
        for first in range(0, 2000, 50):
            await asyncio.gather(*(service.ask(str(index), [index]) for index in range(first, first + 50)))
        client = importlib.import_module("redis.asyncio").Redis.from_url(server.url)
        assert len(await client.client_list()) <= 9
        await client.aclose()
        assert service.counts.breaker_state == "closed"


async def test_a_cache_without_a_server_closes(server):
    cache = RedisCache(RedisConnection("redis://127.0.0.1:1/0"), ServiceMetrics().prediction_cache_counts())
    await cache.close()
