"""Hardening of Serve's HTTP proxy: clients can neither control Serve by headers nor exhaust it."""

import asyncio
from urllib.parse import urlsplit

import httpx
import pytest

from support.faults.bad_requests import ask, bad_requests, good_request
from support.services.polling import wait_until

LONG = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 6000, "ignore_eos": True, "temperature": 0}


async def test_a_client_that_leaves_cannot_order_that_its_request_goes_on(service):
    before = service.kv_blocks_used
    stay = {"x-request-disconnect-disabled": "?1"}
    async with httpx.AsyncClient(base_url=service.base_url, timeout=60, trust_env=False, headers=stay) as http:
        async with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            lines = response.aiter_lines()  # kept: httpx hangs up when it is collected
            await anext(lines)
            await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used > before)
        await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used == before, 2.0)
        request = asyncio.create_task(http.post("/v1/completions", json=LONG))
        await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used > before)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used == before, 2.0)


@pytest.mark.parametrize("seconds", ["0.0001", "-1", "nan", "0", "inf"])
def test_a_client_has_no_say_in_serves_time_limit(service, seconds):
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 4}
    headers = {"x-request-timeout-seconds": seconds}
    assert service.http.post("/v1/completions", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-id",
        b"x-request-timeout-seconds",
        b"x-request-disconnect-disabled",
        b"serve_multiplexed_model_id",
        b"x-session-id",
    ],
)
def test_a_header_that_is_no_utf8_does_no_harm(service, name):
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 1}
    response = service.http.post("/v1/completions", json=body, headers={name: b"\xff\xfeok"})
    assert response.status_code == 200
    if name == b"x-request-id":
        assert response.headers["x-request-id"] == "ok"
        assert response.json()["id"] == "cmpl-ok"


def test_bad_requests_are_refused_through_the_proxy_and_good_ones_answered(service):
    address = urlsplit(service.base_url)
    good = good_request("tiny", address.path)
    for bad in bad_requests("tiny", address.path):
        answer = ask(address.hostname, address.port, bad.payload)
        assert (bad.name, answer.status) == (bad.name, bad.status)
        assert not bad.is_http or answer.is_cut or answer.error["type"] == "invalid_request_error", bad.name
        assert ask(address.hostname, address.port, good).status == 200
