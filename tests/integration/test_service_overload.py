import asyncio

import httpx
import pytest

from support.services.polling import wait_until

MAX_WAITING = 3


@pytest.fixture(scope="module")
def narrow(deploy, tiny_models):
    """One request runs at a time, and few may wait."""
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "max_num_seqs": 1, "num_kv_blocks": 512}
    with deploy("narrow", [model], limits={"max_waiting_requests": MAX_WAITING}) as client:
        yield client


async def test_requests_beyond_the_queue_limit_get_retry_after(narrow):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 5000, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=narrow.base_url, timeout=60, trust_env=False) as http:
        running = asyncio.create_task(http.post("/v1/completions", json=body))
        await asyncio.to_thread(wait_until, lambda: narrow.metric("vllm:num_requests_running") == 1)
        waiting = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(MAX_WAITING)]
        await asyncio.to_thread(wait_until, lambda: narrow.metric("vllm:num_requests_waiting") == MAX_WAITING)
        refused = await http.post("/v1/completions", json=body)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        for task in (running, *waiting):
            task.cancel()
        await asyncio.gather(running, *waiting, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: narrow.kv_blocks_used == 0)
    assert narrow.complete().status_code == 200
