from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from rayinfer.metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from support.fakes.virtual_time import FakeClock


def values(metrics: ServiceMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and the values of its labels, the model's first."""
    samples = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = sorted(sample.labels.items(), key=lambda label: label[0] != "model_name")
            samples[sample.name, tuple(value for _, value in labels)] = sample.value
    return samples


def test_the_names_of_vllm_are_there_before_the_first_request():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.set_engine_stats("tiny", "engine-0", EngineStats(kv_blocks_total=8))
    names = {name for name, _ in values(metrics)}
    assert {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "rayinfer_kv_blocks_used",
        "rayinfer_kv_blocks_total",
    } <= names


def test_a_stream_is_timed_from_arrival_over_its_tokens_to_its_end():
    clock = FakeClock()
    metrics = ServiceMetrics(CollectorRegistry(), clock)
    timer = metrics.request_started("tiny", num_prompt_tokens=7)
    clock.now += 0.3
    timer.tokens(1)
    clock.now += 0.08
    timer.tokens(2)
    timer.tokens(0)
    clock.now += 0.02
    timer.finished("length")
    seen = values(metrics)
    assert seen["vllm:prompt_tokens_total", ("tiny",)] == 7
    assert seen["vllm:generation_tokens_total", ("tiny",)] == 3
    assert seen["vllm:request_success_total", ("tiny", "length")] == 1
    assert seen["vllm:request_success_total", ("tiny", "stop")] == 0
    assert seen["vllm:time_to_first_token_seconds_bucket", ("tiny", "0.25")] == 0
    assert seen["vllm:time_to_first_token_seconds_bucket", ("tiny", "0.5")] == 1
    assert seen["vllm:inter_token_latency_seconds_count", ("tiny",)] == 2
    assert seen["vllm:inter_token_latency_seconds_bucket", ("tiny", "0.05")] == 2
    assert seen["vllm:inter_token_latency_seconds_bucket", ("tiny", "0.025")] == 0
    assert round(seen["vllm:inter_token_latency_seconds_sum", ("tiny",)], 6) == 0.08
    assert round(seen["vllm:e2e_request_latency_seconds_sum", ("tiny",)], 6) == 0.4


def test_the_wait_for_another_engine_is_counted_by_itself():
    clock = FakeClock()
    metrics = ServiceMetrics(CollectorRegistry(), clock)
    moving, new = (metrics.request_started("tiny", num_prompt_tokens=7) for _ in range(2))
    moving.tokens(1)
    clock.now += 0.5
    moving.record_engine_change()
    new.record_engine_change()  # it had no token yet, so nobody saw a gap
    clock.now += 1.3
    for timer in (moving, new, moving):
        timer.tokens(1)
    seen = values(metrics)
    assert seen["rayinfer_migration_gap_seconds_count", ("tiny",)] == 1
    assert round(seen["rayinfer_migration_gap_seconds_sum", ("tiny",)], 6) == 1.8


def test_a_prompt_whose_stream_never_began_is_not_counted():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.request_started("tiny", num_prompt_tokens=7).finished("abort")
    seen = values(metrics)
    assert seen["vllm:prompt_tokens_total", ("tiny",)] == 0
    assert seen["vllm:request_success_total", ("tiny", "abort")] == 1
    assert seen["vllm:time_to_first_token_seconds_count", ("tiny",)] == 0


def test_engine_gauges_follow_the_newest_figures_and_vanish_with_the_engine():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.set_engine_stats("tiny", "a", EngineStats(num_running=1, kv_blocks_used=2, kv_blocks_total=8))
    metrics.set_engine_stats("tiny", "a", EngineStats(num_running=3, kv_blocks_used=6, kv_blocks_total=8))
    metrics.set_num_queued("tiny", 5)
    seen = values(metrics)
    assert seen["vllm:num_requests_running", ("tiny", "a")] == 3
    assert seen["vllm:kv_cache_usage_perc", ("tiny", "a")] == 0.75
    assert seen["rayinfer_kv_blocks_used", ("tiny", "a")] == 6
    assert seen["vllm:num_requests_waiting", ("tiny", "router")] == 5
    metrics.drop_engine("tiny", "a")
    assert ("vllm:num_requests_running", ("tiny", "a")) not in values(metrics)


def test_each_stage_of_a_pipeline_says_how_idle_it_is():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.set_engine_stats("tiny", "a", EngineStats(stage_idle_shares=[0.25, 0.5]))
    metrics.set_engine_stats("tiny", "b", EngineStats())
    shares = {labels: value for (name, labels), value in values(metrics).items() if "stage_idle_share" in name}
    assert shares == {("tiny", "a", "0"): 0.25, ("tiny", "a", "1"): 0.5}


def test_totals_of_an_engine_that_starts_again_from_zero_go_on_growing():
    metrics = ServiceMetrics(CollectorRegistry())
    for preemptions in (2, 5, 1, 4):  # rebuilt between 5 and 1
        metrics.set_engine_stats("tiny", "a", EngineStats(num_preemptions_total=preemptions))
    assert values(metrics)["vllm:num_preemptions_total", ("tiny",)] == 9
    metrics.drop_engine("tiny", "a")
    metrics.set_engine_stats("tiny", "a", EngineStats(num_preemptions_total=1))
    assert values(metrics)["vllm:num_preemptions_total", ("tiny",)] == 10


def test_two_engines_of_a_model_add_up_in_its_counters():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.set_engine_stats("tiny", "a", EngineStats(prompt_tokens_total=10, cached_prompt_tokens_total=4))
    metrics.set_engine_stats("tiny", "b", EngineStats(prompt_tokens_total=20, cached_prompt_tokens_total=6))
    seen = values(metrics)
    assert seen["rayinfer_prefix_cache_query_tokens_total", ("tiny",)] == 30
    assert seen["rayinfer_prefix_cache_hit_tokens_total", ("tiny",)] == 10


def test_refusals_are_counted_by_reason():
    metrics = ServiceMetrics(CollectorRegistry())
    for reason in ("queue_full", "invalid_request", "queue_full"):
        metrics.request_refused(reason)
    seen = values(metrics)
    assert seen["rayinfer_requests_refused_total", ("queue_full",)] == 2
    assert seen["rayinfer_requests_refused_total", ("invalid_request",)] == 1
