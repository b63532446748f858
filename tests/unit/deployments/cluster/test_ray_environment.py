import os

import pytest

from rayinfer_deployments.cluster.haproxy_files import haproxy_files, loopback_settings
from rayinfer_deployments.cluster.ray_environment import (
    RAY_SETTINGS,
    THROUGHPUT_SETTINGS,
    cluster_settings,
    haproxy_settings,
    missing_settings,
    show_only_gpus,
)

HAPROXY_LIMIT = 97  # characters of a socket's path
NODE_ID = "0" * 56  # Serve puts it between the folder and the file


def test_an_environment_that_has_everything_lacks_nothing():
    assert missing_settings(cluster_settings(throughput=False), throughput=False) == []


def test_what_is_missing_is_said_with_what_it_costs_and_other_values_are_respected():
    found = cluster_settings(throughput=False) | {"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "3"}
    del found["RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS"]
    (line,) = missing_settings(found, throughput=False)
    assert line.startswith("RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS=1: ")


def test_throughput_asks_for_more():
    missing = missing_settings(RAY_SETTINGS | {"RAY_AUTH_MODE": "token"}, throughput=True)
    assert {line.partition("=")[0] for line in missing} == set(THROUGHPUT_SETTINGS)


def test_an_empty_environment_lacks_what_shortens_outages_but_not_what_is_a_matter_of_taste():
    names = {line.partition("=")[0] for line in missing_settings({}, throughput=False)}
    assert {"RAY_AUTH_MODE", "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"} <= names
    assert "RAY_USAGE_STATS_ENABLED" not in names


def test_haproxy_can_bind_the_sockets_of_a_service():
    settings = haproxy_settings("/tmp/rayinfer-" + "x" * 8, 1, 2)
    for name, path in settings.items():
        if name.endswith("SOCKET_PATH"):
            folder, _, file = path.rpartition("/")
            assert len(f"{folder}/{NODE_ID}/{file}") <= HAPROXY_LIMIT


def test_a_process_with_gpus_of_its_own_sees_these_and_one_without_sees_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    show_only_gpus(["2"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    show_only_gpus([])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_haproxy_logs_to_no_address_for_which_it_would_open_a_port(host):
    with haproxy_files(host) as settings:
        assert settings["RAY_SERVE_HAPROXY_LOG_TARGET"].startswith("/tmp/rayinfer-")
    assert loopback_settings(host)["RAY_SERVE_HAPROXY_LOG_TARGET"].startswith("/")
