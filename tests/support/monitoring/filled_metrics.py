"""Metrics of a service in which everything has happened once."""

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import AdapterStats, EngineStats, ImageEncodingStats, KVStoreStats, KVTransferStats


def filled_metrics(router: str = "router-1") -> ServiceMetrics:
    """Make metrics with a sample of every family."""
    metrics = ServiceMetrics(router)
    stats = EngineStats(
        kv_blocks_total=8,
        step_tokens=[1, 2, *[0] * 12],
        stage_idle_shares=[0.5],
        kv_store=KVStoreStats(),
        kv_transfer=KVTransferStats(),
        images=ImageEncodingStats(),
        adapters=AdapterStats(max_loras=2),
    )
    metrics.set_engine_stats("tiny", "a", stats)
    metrics.set_engine_config("tiny", "a", {"block_size": "16"})
    metrics.request_params("tiny", n=1, max_tokens=4)
    timer = metrics.request_started("tiny", num_prompt_tokens=7, tenant="alice", adapter="poems")
    timer.record_dispatch()
    timer.tokens(2)
    timer.finished("stop")
    metrics.request_ended("tiny", [2])
    metrics.request_refused("queue_full")
    metrics.request_rejected("tiny", "queue_full")
    metrics.set_key_file_valid(True)
    metrics.set_canary_share("tiny", "new", 0.5)
    metrics.set_role_advice("tiny", 1)
    metrics.batch_counts()
    cache = metrics.prediction_cache_counts()
    cache.of("tiny")
    cache.breaker_state = "closed"
    cache.count_redis_error("failed")
    return metrics
