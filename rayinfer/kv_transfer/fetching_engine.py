"""EngineClient in front of an engine that fetches blocks of requests that name a source, and then submits them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from rayinfer.errors import EngineDead
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.kv_cache.block_hash import hash_blocks, prefix_salt
from rayinfer.kv_store.contents import content_digests
from rayinfer.kv_store.store import BlockName
from rayinfer.kv_transfer.fetcher import BlockFetcher, Fetched
from rayinfer.kv_transfer.limits import DEFAULT_TRANSFER_LIMITS, TransferLimits
from rayinfer.kv_transfer.transfer_agent import PeerAddress
from rayinfer.outputs import KVTransferStats, StepMessage
from rayinfer.protocols import ControlAction, EngineClient, GenerationRequest, KVSource

_logger = logging.getLogger(__name__)


class FetchingEngine:
    """Holds a request that names a source of blocks back while they are fetched, for a bounded time.

    The engine gets it then, whatever came of that: it loads what the store has and computes the rest. Neither other
    requests nor steps wait.
    """

    def __init__(
        self,
        engine: EngineClient,
        fetcher: BlockFetcher,
        *,
        stats: KVTransferStats,
        block_size: int,
        weights_version: int = 0,
        limits: TransferLimits = DEFAULT_TRANSFER_LIMITS,
    ) -> None:
        self.stats = stats
        self._engine = engine
        self._fetcher = fetcher
        self._block_size = block_size
        self._weights_version = weights_version
        self._max_wait_s = limits.max_wait_s
        # More than there are buffers: those that wait for one, or for the machine's own store, do not wait for threads.
        self._threads = ThreadPoolExecutor(4 * limits.num_fetches, thread_name_prefix="kv-fetch")
        self._held: dict[str, asyncio.Task[None]] = {}  # by the ids of the requests that each submits
        self._held_by: dict[str, set[str]] = {}  # by router

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Submit requests, those with a source once it was asked."""
        plain = [request for request in requests if request.kv_source is None]
        if plain:
            await self._engine.submit(plain, router_id)
        fetching = [request for request in requests if request.kv_source is not None]
        if not fetching:
            return
        task = asyncio.get_running_loop().create_task(self._fetch_and_submit(fetching, router_id))
        ids = [request.request_id for request in fetching]
        self._held |= dict.fromkeys(ids, task)
        self._held_by.setdefault(router_id, set()).update(ids)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; those that are held back are never submitted."""
        for request_id in request_ids:
            self._held.pop(request_id, None)
        await self._engine.abort(request_ids)

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        """Compile a grammar for requests to come."""
        await self._engine.compile_grammar(spec, router_id)

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield this router's messages."""
        try:
            async with contextlib.aclosing(self._engine.outputs(router_id)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    message.stats.kv_transfer = self.stats
                    yield message
        finally:
            for request_id in self._held_by.pop(router_id, ()):
                self._held.pop(request_id, None)

    async def control(self, action: ControlAction) -> list[str]:
        """Run an action on the engine."""
        return await self._engine.control(action)

    @property
    def num_held(self) -> int:
        """Requests that are held back."""
        return len(self._held)

    def close(self) -> None:
        """End all fetches; what is held back is not submitted."""
        self._held.clear()
        self._fetcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _fetch_and_submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        begun = time.monotonic()
        source = requests[0].kv_source
        assert source is not None
        timeout_s = min(source.timeout_s, self._max_wait_s)
        try:
            fetching = asyncio.get_running_loop().run_in_executor(
                self._threads, self._fetch, requests[0], source, begun + timeout_s
            )
            fetched = await asyncio.wait_for(asyncio.shield(fetching), timeout_s)
        except TimeoutError:
            fetched = Fetched(failure="timeout")
        except Exception as error:
            fetched = Fetched(failure=f"{type(error).__name__}: {error}")
        waited_s = time.monotonic() - begun
        self._count(fetched, waited_s)
        left = [request for request in requests if self._held.pop(request.request_id, None) is not None]
        if router_id in self._held_by:
            self._held_by[router_id].difference_update(request.request_id for request in requests)
        submitted = [replace(request, kv_source=None, timeout_s=_less(request.timeout_s, waited_s)) for request in left]
        if submitted:
            with contextlib.suppress(EngineDead):  # its outputs end with the reason
                await self._engine.submit(submitted, router_id)

    def _fetch(self, request: GenerationRequest, source: KVSource, deadline: float) -> Fetched:
        names = block_names(request, source.num_blocks, self._block_size, self._weights_version)
        timeout_s = deadline - time.monotonic()
        if not names or timeout_s <= 0:
            return Fetched(failure="timeout" if names else "")
        if not source.host:
            return self._fetcher.wait_for(names, timeout_s=min(source.wait_s, timeout_s))
        peer = PeerAddress(host=source.host, port=source.port, key=source.key, certificate=source.certificate)
        return self._fetcher.fetch(names, peer, wait_s=source.wait_s, timeout_s=timeout_s)

    def _count(self, fetched: Fetched, waited_s: float) -> None:
        stats = self.stats
        stats.fetches_total += 1
        stats.failed_fetches_total += bool(fetched.failure)
        stats.fetched_blocks_total += fetched.num_fetched
        stats.damaged_blocks_total += fetched.num_damaged
        stats.fetch_seconds_total += waited_s
        if fetched.failure:
            _logger.info("a fetch of KV blocks ended early: %s", fetched.failure)


def block_names(
    request: GenerationRequest, num_blocks: int, block_size: int, weights_version: int = 0
) -> list[BlockName]:
    """Name a request's first blocks that may be hits, at most so many: its last token is computed in any case."""
    tokens = request.prompt_token_ids + request.output_token_ids
    num_blocks = min((len(tokens) - 1) // block_size, num_blocks)
    tokens = tokens[: num_blocks * block_size]
    salt = prefix_salt(request.tenant, request.cache_salt, request.adapter, weights_version, request.image_digests)
    contents = content_digests(salt, np.array(tokens, np.int32), block_size, 0, num_blocks)
    keys = hash_blocks(tokens, block_size, salt)
    return [BlockName(key, content) for key, content in zip(keys, contents, strict=True)]


def _less(timeout_s: float | None, waited_s: float) -> float | None:
    return None if timeout_s is None else max(0.001, timeout_s - waited_s)
