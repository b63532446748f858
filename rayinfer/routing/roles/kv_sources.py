"""Sources of KV blocks: which engine's machine a request's engine should fetch its prefix from."""

from collections.abc import Callable, Iterable

from rayinfer.protocols import KVSource
from rayinfer.routing.engine_link import EngineLink

MIN_FETCHED_TOKENS = 256  # fewer are computed
FETCH_TIMEOUT_S = 2.0
HANDOVER_TIMEOUT_S = 4.0  # for blocks that a prefill engine has computed and is copying to its store


def find_source(
    chosen: EngineLink, num_cached_tokens: int, links: Iterable[EngineLink], num_cached: Callable[[EngineLink], int]
) -> KVSource | None:
    """Find the engine on another machine that has most of a prompt beyond what the chosen one has cached."""
    if chosen.kv_address is None:
        return None
    best, most = None, num_cached_tokens + MIN_FETCHED_TOKENS - 1
    for link in links:
        address = link.kv_address
        if (
            address is not None
            and address.store_id != chosen.kv_address.store_id
            and (count := num_cached(link)) > most
        ):
            best, most = address, count
    if best is None:
        return None
    return best.source(num_blocks=most // chosen.description.block_size, timeout_s=FETCH_TIMEOUT_S)


def handover_source(prefill: EngineLink, decode: EngineLink, num_blocks: int) -> KVSource | None:
    """Name the source of a prompt's blocks that a prefill engine has just computed; None where they cannot move."""
    if prefill.kv_address is None or decode.kv_address is None:
        return None
    limit_s = HANDOVER_TIMEOUT_S
    if prefill.kv_address.store_id == decode.kv_address.store_id:
        return KVSource(num_blocks=num_blocks, timeout_s=limit_s, wait_s=limit_s)
    return prefill.kv_address.source(num_blocks=num_blocks, timeout_s=limit_s, wait_s=limit_s)
