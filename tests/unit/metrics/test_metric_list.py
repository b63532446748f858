from prometheus_client.parser import text_string_to_metric_families

from rayinfer.metrics.metric_list import METRICS
from support.metrics.filled_metrics import filled_metrics

CONFIG_LABELS = {"block_size"}  # of vllm:cache_config_info, whose labels are settings


def exported(router: str) -> dict[str, set[str]]:
    """The labels of every sample that a service exports, by the sample's name."""
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(filled_metrics(router).render().decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(set(sample.labels) - {"le"} - CONFIG_LABELS)
    return labels


def test_the_list_is_exactly_what_a_service_exports():
    listed = {name: set(metric.all_labels) for metric in METRICS for name in metric.sample_names}
    assert exported("router-1") == listed


def test_without_routers_no_metric_has_their_label():
    assert not any("router" in labels for labels in exported("").values())


def test_no_name_is_listed_twice():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
