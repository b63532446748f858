"""Files of `rayinfer dashboards`."""

import json
from itertools import combinations

import pytest
import yaml
from pydantic import ValidationError

from rayinfer_deployments.monitoring.alerts import alerts
from rayinfer_deployments.monitoring.dashboards.all_dashboards import all_dashboards
from rayinfer_deployments.monitoring.monitoring_files import monitoring_files, prometheus_config
from rayinfer_deployments.monitoring.objectives import Objectives


def test_objectives_are_in_all_rules():
    text = monitoring_files(Objectives(ttft_s=2.5, itl_target=0.9))["alerts/rayinfer.rules.yaml"]
    assert 'time_to_first_token_seconds_bucket{le="2.5"}' in text
    assert "14.4 * (1 - 0.9)" in text
    assert "@" not in text


def test_an_objective_between_two_buckets_is_refused():
    with pytest.raises(ValidationError, match=r"0\.3 s is no limit of a bucket; those are 0\.001"):
        Objectives(ttft_s=0.3)


def test_panels_do_not_overlap():
    files = monitoring_files(Objectives())
    dashboards = [json.loads(text) for path, text in files.items() if path.startswith("dashboards/")]
    assert len(dashboards) == len(all_dashboards()) == 6
    for dashboard in dashboards:
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for one, other in combinations([panel["gridPos"] for panel in panels], 2):
            is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            is_below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert is_beside or is_below, dashboard["title"]
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_panels_of_one_dashboard_have_titles_and_descriptions():
    for dashboard in all_dashboards():
        for row in dashboard.rows:
            titles = [panel.title for panel in row.panels]
            assert len(set(titles)) == len(titles)
            assert all(panel.description.endswith(".") for panel in row.panels)


def test_alerts_name_a_dashboard_that_exists():
    names = {dashboard.name for dashboard in all_dashboards()}
    assert {alert.dashboard for alert in alerts()} <= names


def test_the_configuration_reads_the_service_with_its_key():
    config = yaml.safe_load(prometheus_config("host:9000", "/run/key"))
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["host:9000"]}]
    assert job["authorization"] == {"credentials_file": "/run/key"}
    assert config["rule_files"] == ["alerts/rayinfer.rules.yaml"]
