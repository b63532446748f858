import pytest
import typer
import yaml
from typer.testing import CliRunner

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.control import limits as limits_command
from rayinfer_deployments.cli.control.limits import mapping_in
from rayinfer_deployments.cluster.service_record import control_socket_path, recorded
from rayinfer_deployments.operations.control_socket import ControlSocket


class Routers:
    """Fake service that stores limits."""

    def __init__(self):
        self.kept = {"max_waiting_requests": 256, "tenants": {"alice": {"weight": 1.0}}}

    async def limits(self):
        return self.kept

    async def change_limits(self, limits):
        self.kept = limits
        return limits


@pytest.fixture
def routers(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))
    routers = Routers()
    operations = {"limits": routers.limits, "change_limits": routers.change_limits}
    settings = {"models": ["m"], "ray_address": "", "owns_ray": True, "application": "rayinfer"}
    with recorded(host="127.0.0.1", port=8000, **settings), ControlSocket(control_socket_path(8000), operations):
        yield routers


def run(*arguments):
    application = typer.Typer()
    application.command()(limits_command.limits)
    return CliRunner().invoke(application, list(arguments))


def test_limits_are_shown_and_left_alone(routers):
    before = dict(routers.kept)
    assert yaml.safe_load(run().stdout) == before
    assert routers.kept == before


def test_single_values_are_set_and_taken_out(routers):
    done = run("--set", "max_waiting_requests=7", "--set", "tenants.bob.weight=2.5", "--set", "tenants.alice=")
    assert done.exit_code == 0
    assert routers.kept == {"max_waiting_requests": 7, "tenants": {"bob": {"weight": 2.5}}}
    assert yaml.safe_load(done.stdout) == routers.kept


def test_a_file_replaces_all_limits_and_set_comes_on_top(routers, tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("ageing_s: 3\nmax_waiting_requests: 9\n")
    assert run("--file", str(file), "--set", "ageing_s=4").exit_code == 0
    assert routers.kept == {"ageing_s": 4, "max_waiting_requests": 9}


@pytest.mark.parametrize("change", ["max_waiting_requests", "=3", "max_waiting_requests.x=3"])
def test_a_change_that_makes_no_sense_changes_nothing(routers, change):
    before = str(routers.kept)
    done = run("--set", change)
    assert done.exit_code == 1
    assert str(routers.kept) == before


@pytest.mark.parametrize("content", ["- a list", "a: [", "text"])
def test_a_file_that_holds_no_names_is_refused(tmp_path, content):
    file = tmp_path / "limits.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"limits\.yaml"):
        mapping_in(file)
