import pickle

from prometheus_client.parser import text_string_to_metric_families

from rayinfer.metrics.families import ROUTER
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineState, EngineStats, ImageEncodingStats, KVStoreStats
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
    metrics = ServiceMetrics()
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
        "vllm:spec_decode_num_drafts_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "rayinfer_kv_blocks_used",
        "rayinfer_kv_blocks_total",
    } <= names


def test_a_stream_is_timed_from_arrival_over_its_tokens_to_its_end():
    clock = FakeClock()
    metrics = ServiceMetrics(clock=clock)
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


def test_a_prediction_counts_its_input_and_is_timed_without_tokens():
    clock = FakeClock()
    metrics = ServiceMetrics(clock=clock)
    metrics.set_engine_stats("tiny", "engine-0", EngineStats(prompt_tokens_total=7))
    timer = metrics.request_started("tiny", num_prompt_tokens=7)
    clock.now += 0.1
    timer.record_dispatch()
    clock.now += 0.2
    timer.prediction(num_cached_tokens=0)
    timer.finished("stop")
    seen = values(metrics)
    assert seen["vllm:prompt_tokens_total", ("tiny",)] == 7
    assert seen["vllm:generation_tokens_total", ("tiny",)] == 0
    assert seen["vllm:request_prompt_tokens_count", ("tiny",)] == 1
    assert round(seen["vllm:request_prefill_time_seconds_sum", ("tiny",)], 6) == 0.2
    assert round(seen["vllm:request_inference_time_seconds_sum", ("tiny",)], 6) == 0.2
    assert seen["vllm:request_decode_time_seconds_count", ("tiny",)] == 0
    assert sum(count for (name, _), count in seen.items() if name == "vllm:prefix_cache_queries_total") == 0


def test_the_wait_for_another_engine_is_counted_by_itself():
    clock = FakeClock()
    metrics = ServiceMetrics(clock=clock)
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
    metrics = ServiceMetrics()
    metrics.request_started("tiny", num_prompt_tokens=7).finished("abort")
    seen = values(metrics)
    assert seen["vllm:prompt_tokens_total", ("tiny",)] == 0
    assert seen["vllm:request_success_total", ("tiny", "abort")] == 1
    assert seen["vllm:time_to_first_token_seconds_count", ("tiny",)] == 0


def test_engine_gauges_follow_the_newest_figures_and_vanish_with_the_engine():
    metrics = ServiceMetrics()
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
    metrics = ServiceMetrics()
    metrics.set_engine_stats("tiny", "a", EngineStats(stage_idle_shares=[0.25, 0.5]))
    metrics.set_engine_stats("tiny", "b", EngineStats())
    shares = {labels: value for (name, labels), value in values(metrics).items() if "stage_idle_share" in name}
    assert shares == {("tiny", "a", "0"): 0.25, ("tiny", "a", "1"): 0.5}


def test_an_engine_with_a_block_store_reports_its_use():
    metrics = ServiceMetrics()
    metrics.set_engine_stats("tiny", "b", EngineStats())
    assert not [name for name, _ in values(metrics) if "kv_store" in name]
    store = KVStoreStats(memory_bytes=5, disk_bytes=6, memory_hit_tokens_total=32, stored_blocks_total=2)
    metrics.set_engine_stats("tiny", "a", EngineStats(kv_store=store))
    seen = values(metrics)
    assert seen["rayinfer_kv_store_hits_total", ("tiny", "a", "memory")] == 32
    assert seen["rayinfer_kv_store_bytes", ("tiny", "a", "disk")] == 6
    blocks = {labels[2]: value for (name, labels), value in seen.items() if name == "rayinfer_kv_store_blocks_total"}
    assert blocks == {"stored": 2, "evicted": 0, "dropped": 0, "damaged": 0}


def test_an_engine_with_images_reports_encodings_and_hits():
    metrics = ServiceMetrics()
    metrics.set_engine_stats("tiny", "b", EngineStats())
    assert not [name for name, _ in values(metrics) if "image" in name or "mm_cache" in name]
    images = ImageEncodingStats(
        encodings_total=2, encode_seconds_total=0.5, queries_total=5, cache_hits_total=3, num_waiting=1
    )
    metrics.set_engine_stats("tiny", "a", EngineStats(images=images))
    seen = {name: value for (name, _), value in values(metrics).items() if "image" in name or "mm_cache" in name}
    assert seen == {
        "vllm:mm_cache_queries_total": 5,
        "vllm:mm_cache_hits_total": 3,
        "rayinfer_image_encodings_total": 2,
        "rayinfer_image_encode_seconds_total": 0.5,
        "rayinfer_image_requests_waiting": 1,
    }


def test_totals_of_engines_have_a_series_each():
    metrics = ServiceMetrics()
    for engine, num_prompt_tokens in (("a", 10), ("b", 20), ("b", 21)):
        stats = EngineStats(
            kv_blocks_total=8,
            prompt_tokens_total=num_prompt_tokens,
            cached_prompt_tokens_total=4,
            num_preemptions_total=2,
            num_drafts_total=5,
            draft_tokens_total=30,
            accepted_draft_tokens_total=12,
        )
        metrics.set_engine_stats("tiny", engine, stats)
    seen = values(metrics)
    assert seen["vllm:prefix_cache_queries_total", ("tiny", "a")] == 10
    assert seen["vllm:prefix_cache_queries_total", ("tiny", "b")] == 21
    assert seen["vllm:prefix_cache_hits_total", ("tiny", "b")] == 4
    assert seen["vllm:num_preemptions_total", ("tiny", "a")] == 2
    assert seen["vllm:spec_decode_num_drafts_total", ("tiny", "a")] == 5
    assert seen["vllm:spec_decode_num_draft_tokens_total", ("tiny", "a")] == 30
    assert seen["vllm:spec_decode_num_accepted_tokens_total", ("tiny", "b")] == 12
    metrics.drop_engine("tiny", "a")
    assert ("vllm:num_preemptions_total", ("tiny", "a")) not in values(metrics)


def test_a_requests_time_is_divided_at_dispatch_and_first_token():
    clock = FakeClock()
    metrics = ServiceMetrics(clock=clock)
    timer = metrics.request_started("tiny", num_prompt_tokens=7)
    clock.now += 1.0
    timer.record_dispatch()
    clock.now += 2.0
    timer.tokens(1, num_cached_tokens=5)
    timer.record_dispatch()  # it migrates: that is part of its inference
    clock.now += 4.0
    timer.tokens(2)
    clock.now += 8.0
    timer.finished("stop")
    seen = {name: value for (name, _), value in values(metrics).items() if name.endswith(("_sum", "_total"))}
    assert seen["vllm:request_queue_time_seconds_sum"] == seen["tgi_request_queue_duration_sum"] == 1.0
    assert seen["vllm:request_prefill_time_seconds_sum"] == 2.0
    assert seen["vllm:request_decode_time_seconds_sum"] == 4.0
    assert seen["vllm:request_inference_time_seconds_sum"] == seen["tgi_request_inference_duration_sum"] == 6.0
    assert seen["vllm:request_time_per_output_token_seconds_sum"] == 2.0
    assert seen["tgi_request_mean_time_per_token_duration_sum"] == 2.0
    assert seen["vllm:e2e_request_latency_seconds_sum"] == seen["tgi_request_duration_sum"] == 15.0
    assert seen["vllm:prompt_tokens_cached_total"] == 5
    assert seen["vllm:request_prefill_kv_computed_tokens_sum"] == 2
    assert seen["vllm:request_generation_tokens_sum"] == seen["tgi_request_generated_tokens_sum"] == 3


def test_a_request_that_never_reached_an_engine_has_no_queue_time():
    metrics = ServiceMetrics()
    metrics.request_started("tiny", num_prompt_tokens=7).finished("timeout")
    seen = values(metrics)
    assert seen["vllm:request_queue_time_seconds_count", ("tiny",)] == 0
    assert seen["tgi_request_failure_total", ("tiny", "incomplete_generation")] == 1


def test_one_scrape_has_the_samples_of_all_routers_once():
    first, second = ServiceMetrics("router-1"), ServiceMetrics("router-2")
    for router, num_tokens in ((first, 3), (second, 5)):
        router.request_started("tiny", num_prompt_tokens=7).tokens(num_tokens)
        router.request_refused("queue_full")
        router.set_num_queued("tiny", num_tokens)
    first.set_engine_stats("tiny", "a", EngineStats(num_running=1, num_steps_total=8))
    second.set_engine_stats("tiny", "a", EngineStats(num_running=2, num_steps_total=9))  # it heard from it later
    text = first.render([pickle.loads(pickle.dumps(second.snapshot()))])
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    found = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    assert len(found) == len(set(found))
    tokens = {s.labels["router"]: s.value for s in samples if s.name == "vllm:generation_tokens_total"}
    assert tokens == {"router-1": 3, "router-2": 5}
    assert [s.value for s in samples if s.name == "vllm:num_requests_running"] == [2]
    assert sum(s.value for s in samples if s.name == "vllm:num_requests_waiting" and s.labels["engine"] == ROUTER) == 8
    assert {s.labels["router"] for s in samples if s.name == "rayinfer_router_info"} == {"router-1", "router-2"}


def test_the_tokens_of_steps_are_a_histogram_of_each_engine():
    metrics = ServiceMetrics()
    metrics.set_engine_stats("tiny", "a", EngineStats(step_tokens=[1, 2, *[0] * 12], step_tokens_total=17))
    seen = values(metrics)
    assert seen["vllm:iteration_tokens_total_count", ("tiny", "a")] == 3
    assert seen["vllm:iteration_tokens_total_bucket", ("tiny", "a", "1.0")] == 1
    assert seen["vllm:iteration_tokens_total_sum", ("tiny", "a")] == 17


def test_the_config_and_state_of_an_engine_are_labels():
    metrics = ServiceMetrics()
    metrics.set_engine_config("tiny", "a", {"block_size": "16", "num_gpu_blocks": "64"})
    metrics.set_engine_stats("tiny", "a", EngineStats(state=EngineState.ASLEEP))
    seen = values(metrics)
    assert seen["vllm:cache_config_info", ("tiny", "16", "a", "64")] == 1
    assert seen["vllm:engine_sleep_state", ("tiny", "a", "asleep")] == 1
    assert seen["vllm:engine_sleep_state", ("tiny", "a", "awake")] == 0


def test_refusals_are_counted_by_reason():
    metrics = ServiceMetrics()
    for reason in ("queue_full", "invalid_request", "queue_full"):
        metrics.request_refused(reason)
    seen = values(metrics)
    assert seen["rayinfer_requests_refused_total", ("queue_full",)] == 2
    assert seen["rayinfer_requests_refused_total", ("invalid_request",)] == 1


def test_a_damaged_key_file_is_in_the_metrics_of_services_with_keys():
    metrics = ServiceMetrics()
    assert "key_file" not in metrics.render().decode()
    for is_valid in (True, False):
        metrics.set_key_file_valid(is_valid)
        assert f"rayinfer_key_file_valid {float(is_valid)}" in metrics.render().decode()


def test_a_model_that_lost_its_engines_is_listed_with_zeros():
    metrics = ServiceMetrics("router-1")
    metrics.set_engine_stats("tiny", "a", EngineStats())
    metrics.set_engine_stats("tiny", "b", EngineStats(state=EngineState.PAUSED))
    seen = values(metrics)
    assert seen["rayinfer_engines", ("tiny", "router-1", "running")] == 1
    assert seen["rayinfer_engines", ("tiny", "router-1", "paused")] == 1
    for engine in ("a", "b"):
        metrics.drop_engine("tiny", engine)
        metrics.engine_lost("tiny")
    seen = values(metrics)
    assert seen["rayinfer_engines", ("tiny", "router-1", "running")] == 0
    assert seen["rayinfer_engines_lost_total", ("tiny", "router-1")] == 2
