"""Measurement of engines with roles: real engines of one thread each in this process, behind a router."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.benchmark.studies.autoscaling.trace import TracedRequest
from rayinfer.benchmark.studies.roles.mixed_load import MixedLoad, Seen
from rayinfer.config import EngineConfig, shared_memory_folder
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.kv_store.file_locks import delete_unused
from rayinfer.kv_transfer.engine_transfers import EngineTransfers
from rayinfer.liveness import LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.roles.settings import RoleSettings
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer

_MODEL = "bench"
# One process has all engines and their clients: what looks hung is a long step on a busy core.
_LIMITS = LivenessLimits(min_step_limit_s=60.0, link_timeout_s=60.0)
_HOST = "127.0.0.1"
_CREDITS_S = 30.0
_MOST_TOKEN_IDS = 1000  # that prompts are drawn from


@dataclass(kw_only=True, slots=True)
class Measured:
    """Times that clients saw of one arrangement, and their tokens in the order of the load."""

    seen: Seen
    token_ids: list[list[int]] = field(default_factory=list)


async def measure(
    folder: Path, load: MixedLoad, settings: dict[str, Any], *, num_engines: int, num_prefill: int, run: str
) -> Measured:
    """Send the load in real time; nothing of other runs is found in caches, by a salt of this `run`."""
    roles = None
    if num_prefill:
        shortest = max(load.chat_tokens[0] + 1, load.long_tokens[0] // 2)
        roles = RoleSettings(prefill=num_prefill, decode=num_engines - num_prefill, min_prompt_tokens=shortest)
    requests = load.requests()
    async with _router(folder, settings, num_engines, roles) as (router, metrics, vocab_size):
        await asyncio.gather(
            *(
                _ask(router, [5 + number] * 200, 4, f"{run} {number}", f"warm-up {number}")
                for number in range(num_engines)
            )
        )
        seen, begun = Seen(), time.perf_counter()
        answers = await asyncio.gather(
            *(
                _client(router, load, request, begun, seen, _prompt(request, number, vocab_size), f"{run} {number}")
                for number, request in enumerate(requests)
            )
        )
        seen.lasted_s = time.perf_counter() - begun - (requests[0].arrival_s if requests else 0.0)
        seen.num_tokens = sum(map(len, answers))
        seen.num_handovers = metrics.snapshot().models[_MODEL].handovers
        return Measured(seen=seen, token_ids=answers)


async def _client(
    router: Dispatcher,
    load: MixedLoad,
    traced: TracedRequest,
    begun: float,
    seen: Seen,
    prompt: Sequence[int],
    name: str,
) -> list[int]:
    await asyncio.sleep(max(0.0, begun + traced.arrival_s - time.perf_counter()))
    sent = latest = time.perf_counter()
    is_long, token_ids = load.is_long(traced), list[int]()
    async for new in _stream(router, prompt, traced.output_tokens, name, name):
        now = time.perf_counter()
        if not token_ids:
            (seen.long_ttft_s if is_long else seen.chat_ttft_s).append(now - sent)
        elif not is_long:
            seen.chat_gaps_s.append(now - latest)
        latest = now
        token_ids += new
    return token_ids


async def _ask(router: Dispatcher, prompt: Sequence[int], max_tokens: int, salt: str, name: str) -> None:
    async for _ in _stream(router, prompt, max_tokens, salt, name):
        pass


async def _stream(
    router: Dispatcher, prompt: Sequence[int], max_tokens: int, salt: str, name: str
) -> AsyncIterator[list[int]]:
    request = GenerationRequest(
        request_id=name,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        cache_salt=salt,
    )
    async for output in router.generate(request):
        if new := output.outputs[0].token_ids:
            yield new


@asynccontextmanager
async def _router(
    folder: Path, settings: dict[str, Any], num_engines: int, roles: RoleSettings | None
) -> AsyncIterator[tuple[Dispatcher, ServiceMetrics, int]]:
    config = EngineConfig(
        **{"kv_store_gib": 1.0, "num_threads": 1, "pin_threads": False}
        | settings
        | {"model": str(folder), "kv_transfer": True}
    )
    stores_before = set(shared_memory_folder().glob("*"))
    metrics = ServiceMetrics()
    router = Dispatcher(
        _MODEL, Tokenizer.from_folder(folder), metrics, router_id="router", roles=roles, liveness=_LIMITS
    )
    engines: list[AsyncEngine] = []
    transfers: list[EngineTransfers] = []
    try:
        for number in range(num_engines):
            stepped = build_engine(config, folder)
            engine = AsyncEngine(stepped, limits=_LIMITS)
            engine.start()
            engines.append(engine)
            assert stepped.stored_blocks is not None
            transfers.append(EngineTransfers(engine, engine.description, stepped.stored_blocks, _HOST))
            router.engines.add(f"engine-{number}", transfers[-1].engine, engine.description, transfers[-1].address)
        async with asyncio.timeout(_CREDITS_S):
            while not all(link.stats.credits.num_requests for link in router.engines.links.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield router, metrics, engines[0].description.vocab_size
    finally:
        await router.close()
        for each in transfers:
            await asyncio.to_thread(each.close)
        await asyncio.gather(*(engine.shutdown() for engine in engines))
        for store in set(shared_memory_folder().glob("*.kv")) - stores_before:
            delete_unused(store)


def _prompt(request: TracedRequest, number: int, vocab_size: int) -> list[int]:
    draw = random.Random(number)
    most = min(_MOST_TOKEN_IDS, vocab_size)
    return [draw.randrange(3, most) for _ in range(request.prompt_tokens)]
