import pytest

from rayinfer.errors import ConfigError, RayinferError
from rayinfer_deployments.cli.control.service_choice import chosen_service, ray_to_join
from rayinfer_deployments.cluster.service_record import recorded

SETTINGS = {"models": ["m"], "ray_address": "", "owns_ray": True, "application": "rayinfer"}


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """A machine without services, and without a Ray that `ray start` has started."""
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.fixture
def started(empty):
    """A Ray that `ray start` has started there."""
    (empty / "ray").mkdir()
    (empty / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")


def test_without_services_and_without_a_ray_nothing_is_joined(empty):
    assert ray_to_join(None, None, None) is None
    with pytest.raises(RayinferError, match="no rayinfer service runs"), chosen_service(None, None, None):
        pass


@pytest.mark.usefixtures("started")
def test_without_services_the_ray_that_was_started_here_is_joined(monkeypatch):
    assert ray_to_join(None, None, None) == "10.0.0.1:6379"
    assert ray_to_join(None, None, "a") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert ray_to_join(None, None, None) == "10.0.0.2:6379"
    assert ray_to_join(None, "auto", None) == "auto"


@pytest.mark.usefixtures("started")
def test_a_service_on_record_comes_before_a_ray_unless_one_is_named():
    with recorded(host="127.0.0.1", port=8000, **SETTINGS) as record:
        assert ray_to_join(None, None, None) is None
        assert ray_to_join(8000, None, None) is None
        assert ray_to_join(None, "h:1", None) == "h:1"
        assert ray_to_join(None, None, "a") == "10.0.0.1:6379"
        with chosen_service(8000, None, None) as service:
            assert service.record == record


@pytest.mark.usefixtures("started")
def test_a_port_is_looked_for_on_this_machine_alone():
    with pytest.raises(RayinferError, match="no rayinfer service runs on port 8000"), chosen_service(8000, None, None):
        pass


@pytest.mark.parametrize("more", [("auto", None), (None, "a")])
@pytest.mark.usefixtures("empty")
def test_a_port_and_a_ray_exclude_each_other(more):
    with pytest.raises(ConfigError, match="--port"):
        ray_to_join(8000, *more)
