from rayinfer.metrics.metric_list import METRICS
from support.monitoring.known_metrics import exported_labels

NOT_LISTED = {"le", "block_size"}  # limits of buckets; settings, which are labels of vllm:cache_config_info


def test_the_list_is_exactly_what_a_service_exports():
    listed = {name: set(metric.all_labels) for metric in METRICS for name in metric.sample_names}
    assert {name: labels - NOT_LISTED for name, labels in exported_labels("router-1").items()} == listed


def test_without_routers_no_metric_has_their_label():
    assert not any("router" in labels for labels in exported_labels("").values())


def test_no_name_is_listed_twice():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
