import asyncio

import httpx

from support.services.polling import wait_until

NUM_CLIENTS = 50
LONG = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 6000, "ignore_eos": True, "temperature": 0}


async def test_fifty_clients_that_leave_their_streams_give_back_their_blocks(service):
    before = service.kv_blocks_used
    async with httpx.AsyncClient(
        base_url=service.base_url, timeout=60, trust_env=False, limits=httpx.Limits(max_connections=NUM_CLIENTS)
    ) as http:
        has_text = [asyncio.Event() for _ in range(NUM_CLIENTS)]

        async def read(index):
            async with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        has_text[index].set()

        readers = [asyncio.create_task(read(index)) for index in range(NUM_CLIENTS)]
        await asyncio.gather(*(event.wait() for event in has_text))
        await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used >= before + NUM_CLIENTS)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used == before, 2.0)


async def test_a_client_that_leaves_before_its_whole_answer_gives_back_its_blocks(service):
    before = service.kv_blocks_used
    async with httpx.AsyncClient(base_url=service.base_url, timeout=60, trust_env=False) as http:
        request = asyncio.create_task(http.post("/v1/completions", json=LONG))
        await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used > before)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: service.kv_blocks_used == before, 2.0)
