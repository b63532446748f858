"""Every panel and rule names metrics and labels that a service exports."""

import re

import pytest

from rayinfer.metrics import metric_list
from rayinfer_deployments.monitoring.dashboards.all_dashboards import all_dashboards
from rayinfer_deployments.monitoring.expressions import Scope
from rayinfer_deployments.monitoring.foreign_metrics import RAY_METRICS
from rayinfer_deployments.monitoring.objectives import Objectives
from rayinfer_deployments.monitoring.rule_files import placed_groups
from support.monitoring.known_metrics import known_metrics, text_of_rays_agent
from support.monitoring.promql_names import mistakes_in, names_in

QUERIES = [
    (f"{dashboard.name}: {panel.title}", query)
    for dashboard in all_dashboards()
    for panel in dashboard.panels
    for query in panel.queries
]


def test_panels_name_exported_metrics_and_labels_only():
    known = known_metrics()
    found = {title: mistakes for title, query in QUERIES if (mistakes := mistakes_in(query.expression, known))}
    assert found == {}


def test_rules_name_exported_metrics_and_labels_only():
    known = known_metrics()
    rules = [rule for group in placed_groups(Objectives()) for rule in group["rules"]]
    found = {rule.get("alert", rule.get("record")): mistakes_in(rule["expr"], known) for rule in rules}
    assert {name: mistakes for name, mistakes in found.items() if mistakes} == {}


def test_legends_use_labels_that_their_series_have():
    known = known_metrics()
    for title, query in QUERIES:
        names = names_in(query.expression)
        labels = names.kept or set().union(*(known[metric] for metric in names.metrics))
        assert set(re.findall(r"{{(\w+)}}", query.legend)) <= labels, title


def test_metrics_of_ray_are_those_of_its_agent():
    text = text_of_rays_agent()
    assert [metric.name for metric in RAY_METRICS if f'"{metric.name.removeprefix("ray_")}"' not in text] == []


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("sum(rate(vllm:prompt_token_total[5m]))", "unknown metric vllm:prompt_token_total"),
        ('rayinfer_engines{stat="running"}', "rayinfer_engines has no label stat"),
        ("sum by (modelname) (rayinfer_engines)", "no metric has the label modelname"),
        ("rayinfer:engines:counts > 1", "unknown metric rayinfer:engines:counts"),
    ],
)
def test_a_misspelt_name_is_found(expression: str, mistake: str):
    assert mistakes_in(expression, known_metrics()) == [mistake]


def test_an_expression_with_an_unknown_label_cannot_be_made():
    with pytest.raises(ValueError, match="rayinfer_engines: no label 'stat'"):
        Scope().series(metric_list.ENGINES, stat="running")
    with pytest.raises(ValueError, match="no label 'tenant' to sum by"):
        Scope().total(metric_list.NUM_RUNNING, ["tenant"])
    with pytest.raises(ValueError, match="a gauge has no rate"):
        Scope().rate(metric_list.NUM_RUNNING)
    with pytest.raises(ValueError, match="a histogram, so part=None is impossible"):
        Scope().series(metric_list.FIRST_TOKEN)


def test_each_series_counts_once_however_many_pods_are_scraped():
    rate = Scope(job="$job", model="$model").rate(metric_list.PROMPT_TOKENS, ["model_name"], window="5m")
    assert rate == (
        "sum by (model_name) (max without (instance, pod)"
        ' (rate(vllm:prompt_tokens_total{model_name=~"$model", job=~"$job"}[5m])))'
    )
