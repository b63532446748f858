import json
import os

import pytest

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.service_record import find_services, record_folder, recorded, service_url

SERVICE = {
    "host": "0.0.0.0",
    "models": ["m"],
    "ray_address": "127.0.0.1:6379",
    "owns_ray": True,
    "application": "rayinfer",
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))


def test_a_service_is_recorded_while_it_runs_and_no_longer():
    with recorded(port=8123, **SERVICE) as record:
        assert find_services() == [record] == find_services(8123)
        assert record.pid == os.getpid()
        assert record.base_url == "http://127.0.0.1:8123"
    assert find_services() == []
    assert list(record_folder().iterdir()) == []


def test_a_record_whose_process_is_gone_is_passed_over():
    with recorded(port=8123, **SERVICE):
        path = record_folder() / "8123.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"start_ticks": content["start_ticks"] - 1}))  # the pid was used again
        assert find_services() == []


def test_a_record_that_cannot_be_read_is_passed_over():
    with recorded(port=8123, **SERVICE) as record:
        (record_folder() / "9.json").write_text("{")
        (record_folder() / "10.json").write_text('{"pid": 1}')
        assert find_services() == [record]


def test_a_port_without_a_service_is_said_with_those_that_have_one():
    with recorded(port=8123, **SERVICE), pytest.raises(RayinferError, match=r"port 9 .*running: 8123"):
        find_services(9)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("example.org", "http://example.org:80"),
    ],
)
def test_the_address_is_one_that_this_machine_reaches(host, url):
    assert service_url(host, 80) == url
