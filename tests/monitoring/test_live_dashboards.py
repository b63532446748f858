"""Prometheus reads a service under load, and every panel has data."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayinfer_deployments.monitoring.dashboards.all_dashboards import all_dashboards
from rayinfer_deployments.monitoring.monitoring_files import monitoring_files, prometheus_config
from rayinfer_deployments.monitoring.objectives import Objectives
from support.monitoring.board_picture import draw_dashboard
from support.monitoring.board_queries import Span, panels_without_data
from support.monitoring.prometheus_server import PrometheusServer
from support.monitoring.watched_service import SECRETS, ray_node, watched_service
from support.services.free_ports import free_port
from support.services.polling import wait_until

pytestmark = pytest.mark.dashboards

LOAD_S = 60.0
WITHOUT_DATA = {
    "service: Share of canaries": "no model has a canary",
    "engines: Idle stages of pipelines": "no engine has a pipeline",
    "cluster: Firing alerts": "no alert fires in a minute",
    "cluster: GPU": "the machine has no GPU",
    "cluster: GPU memory": "the machine has no GPU",
    "predictors: Redis": "the cache of predictions is in memory",
    "predictors: Redis [1]": "the cache of predictions is in memory",
}


@dataclass(frozen=True, slots=True)
class Watched:
    """A Prometheus with a time of load in it."""

    prometheus: PrometheusServer
    span: Span


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("monitoring")
    (folder / "key").write_text(SECRETS["alice"])
    with ray_node(folder) as ray_port, watched_service(folder) as service:
        files = monitoring_files(Objectives())
        rules = "alerts/rayinfer.rules.yaml"
        files[rules] = files[rules].replace("interval: 5m", "interval: 2s")  # of error budgets
        files["prometheus.yaml"] = prometheus_config(f"127.0.0.1:{service.port}", str(folder / "key"))
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        with PrometheusServer(folder, free_port(), {"ray": f"127.0.0.1:{ray_port}"}) as prometheus:
            start_s = time.time()
            service.load(LOAD_S)
            time.sleep(3)
            yield Watched(prometheus, Span(start_s, time.time()))


def test_prometheus_reads_service_and_ray_and_evaluates_rules(watched: Watched):
    wait_until(lambda: watched.prometheus.targets() == {"rayinfer": "up", "ray": "up"}, timeout_s=10, interval_s=0.5)
    assert watched.prometheus.rule_errors() == []


def test_every_panel_has_data(watched: Watched):
    assert panels_without_data(watched.prometheus, all_dashboards(), watched.span) == set(WITHOUT_DATA)


def test_the_killed_engine_is_on_the_boards(watched: Watched):
    lost = watched.prometheus.series(
        'rayinfer_engines_lost_total{model_name="smollm2-135m"}', watched.span.start_s, watched.span.end_s
    )
    assert sum(float(series["values"][-1][1]) for series in lost) == 1


def test_dashboards_can_be_drawn(watched: Watched, request: pytest.FixtureRequest, tmp_path: Path):
    folder = Path(request.config.getoption("--pictures") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard in all_dashboards():
        draw_dashboard(watched.prometheus, dashboard, watched.span, folder / f"{dashboard.name}.png")
        assert (folder / f"{dashboard.name}.png").stat().st_size > 10_000
