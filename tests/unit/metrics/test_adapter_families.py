"""Metrics of LoRA adapters, of engines and of requests."""

import time

from prometheus_client.parser import text_string_to_metric_families

from rayinfer.metrics.adapter_counts import MAX_ADAPTERS, AdapterCounts, counts_of_adapter
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import AdapterStats, EngineStats


def samples(metrics):
    """Values by name and labels, without the model and the engine."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            own = {name: value for name, value in sample.labels.items() if name not in ("model_name", "engine")}
            found[sample.name, tuple(sorted(own.items()))] = sample.value
    return found


def test_engines_report_their_adapters_under_the_name_of_vllm():
    metrics = ServiceMetrics()
    metrics.set_engine_stats("tiny", "without", EngineStats())
    assert not [name for name, _ in samples(metrics) if "adapter" in name or "lora" in name]
    stats = AdapterStats(
        max_loras=4,
        running=["a", "b"],
        waiting=["c"],
        num_resident=3,
        resident_bytes=300,
        slot_bytes=100,
        loads_total=7,
        failed_loads_total=1,
        evictions_total=4,
        load_seconds_total=0.5,
    )
    metrics.set_engine_stats("tiny", "with", EngineStats(adapters=stats))
    seen = samples(metrics)
    labels = (("max_lora", "4"), ("running_lora_adapters", "a,b"), ("waiting_lora_adapters", "c"))
    assert 0 <= time.time() - seen["vllm:lora_requests_info", labels] < 60
    assert seen["rayinfer_adapters_resident", ()] == 3
    assert seen["rayinfer_adapters_resident_bytes", ()] == 300
    assert seen["rayinfer_adapters_slot_bytes", ()] == 100
    assert seen["rayinfer_adapter_loads_total", (("outcome", "loaded"),)] == 7
    assert seen["rayinfer_adapter_loads_total", (("outcome", "refused"),)] == 1
    assert seen["rayinfer_adapter_evictions_total", ()] == 4
    assert seen["rayinfer_adapter_load_seconds_total", ()] == 0.5


def test_requests_are_counted_by_adapter_and_end():
    metrics = ServiceMetrics()
    metrics.request_started("tiny", 7).finished("stop")
    for reason in ("stop", "stop", "abort"):
        metrics.request_started("tiny", 7, adapter="poems").finished(reason)
    counted = {labels: value for (name, labels), value in samples(metrics).items() if "adapter_requests" in name}
    assert {dict(labels)["finished_reason"]: value for labels, value in counted.items() if value} == {
        "stop": 2,
        "abort": 1,
    }
    assert {dict(labels)["adapter"] for labels in counted} == {"poems"}


def test_adapters_beyond_the_limit_share_their_counts():
    adapters: dict[tuple[str, str], AdapterCounts] = {}
    for number in range(MAX_ADAPTERS + 5):
        counts_of_adapter(adapters, "tiny", f"adapter-{number}").finished["stop"] += 1
    assert len(adapters) == MAX_ADAPTERS + 1
    assert adapters["tiny", "(other)"].finished["stop"] == 5
    assert counts_of_adapter(adapters, "tiny", "adapter-3").finished["stop"] == 1
