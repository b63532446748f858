"""Operation of a service that Serve has deployed from a config, by processes attached to its Ray."""

import json

import httpx
import pytest
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from rayinfer.errors import RayinferError
from rayinfer_deployments.config_check import OUR_BUILDER
from rayinfer_deployments.operations.attached_service import DeployedService, readiness_in
from rayinfer_deployments.operations.deployed_config import read_details
from support.faults.cli_processes import run_cli
from support.services.free_ports import free_port
from support.services.polling import wait_until
from support.services.service_client import ServiceClient
from support.services.service_load import engine_names, router_pids

SMALL = {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0}


def apply(*applications):
    """Hand Serve a config, as `serve deploy` does; applications of earlier configs that are not in it go."""
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": list(applications)}))


@pytest.fixture(scope="module")
def deployed(cluster, tiny_models):
    model = SMALL | {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 1024}
    deployments = [{"name": "router", "user_config": {"max_waiting_requests": 77}}]
    args = {"models": [model], "limits": {"ageing_s": 3.0}}
    apply(
        {
            "name": "filed",
            "route_prefix": "/filed",
            "import_path": OUR_BUILDER,
            "args": args,
            "deployments": deployments,
        }
    )
    try:
        with httpx.Client(base_url=f"{cluster}/filed", timeout=60, trust_env=False) as http:
            client = ServiceClient(http)
            wait_until(client.is_ready)
            yield client
    finally:
        apply()
        wait_until(lambda: "filed" not in serve.status().applications)


@pytest.fixture
def service(deployed):
    found = DeployedService(None)
    yield found
    found.close()


def ask(service, operation, **arguments):
    return service.ask(operation, timeout_s=120.0, **arguments)


def test_a_deployed_service_is_found_described_and_paused(deployed, service, cluster):
    report = ask(service, "status")
    assert (service.application, service.url, report["state"]) == ("filed", f"{cluster}/filed", "RUNNING")
    assert {each["name"]: each["wanted"] for each in report["deployments"]} == {"router": 1, "engine-0-tiny": 1}
    assert readiness_in(report) == {}
    assert ask(service, "control", action="pause") == ["tiny"]
    assert readiness_in(ask(service, "status")) == {"tiny": "paused"}
    assert ask(service, "control", action="resume", model="tiny") == ["tiny"]
    with pytest.raises(RayinferError, match="unknown"):
        ask(service, "control", action="resume", model="unknown")


def test_top_shows_a_deployed_service(deployed, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    deployed.text_of()
    shown = run_cli("top", "--base-url", deployed.base_url, "--once", cache=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for part in ("tiny  ready", "running", "0 used", next(iter(engine_names(deployed)))[:12]):
        assert part in shown.stdout


def test_limits_of_a_deployed_service_change_in_its_config_and_no_process_is_replaced(deployed, service):
    before = engine_names(deployed), router_pids("filed")
    limits = ask(service, "limits")
    assert (limits["max_waiting_requests"], limits["ageing_s"]) == (77, 10.0)  # as Serve takes a user_config: whole
    ask(service, "change_limits", limits=limits | {"max_waiting_requests": 5})
    again = DeployedService("filed")  # another command finds what this one left
    assert ask(again, "limits")["max_waiting_requests"] == 5
    again.close()
    assert (engine_names(deployed), router_pids("filed")) == before
    application = read_details()["applications"]["filed"]
    assert application["source"] == "declarative"
    assert application["deployed_app_config"]["args"]["limits"] == {"ageing_s": 3.0}
    with pytest.raises(RayinferError, match="ageing_s"):
        ask(service, "change_limits", limits={"ageing_s": -1})
    with pytest.raises(RayinferError, match="is the only engine"):
        ask(service, "drain", engine=next(iter(before[0])), shrink=True)


def test_the_commands_join_a_ray_by_its_address(deployed, tmp_path):
    address = ray.get_runtime_context().gcs_address
    done = run_cli("status", "--json", "--address", address, "--application", "filed", cache=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)
    assert (found["ready"], found["owns_ray"], found["ray_address"], found["pid"]) == (True, False, address, None)


def test_a_wrong_ray_address_and_a_missing_token_are_one_line_errors(deployed, tmp_path, monkeypatch):
    nowhere = run_cli("limits", "--address", f"127.0.0.1:{free_port()}", cache=tmp_path)
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    assert "cannot attach to Ray at 127.0.0.1" in nowhere.stderr
    unclear = run_cli("limits", "--address", "head-node", cache=tmp_path)
    assert (unclear.returncode, unclear.stderr.count("\n")) == (1, 1)
    assert "cannot attach to Ray at head-node" in unclear.stderr
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for mode in ("", "token"):
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        stranger = run_cli("status", "--address", ray.get_runtime_context().gcs_address, cache=tmp_path)
        assert stranger.returncode == 1
        assert "token" in stranger.stderr.splitlines()[-1]  # of Ray itself there may be a line before it


@pytest.mark.faults
def test_a_deployed_service_gets_as_many_engines_as_an_operator_says(deployed, service):
    before = router_pids("filed")
    assert len(ask(service, "scale", num_engines=2)["tiny"]) == 2
    again = DeployedService("filed")
    assert len(ask(again, "scale", num_engines=None)["tiny"]) == 1  # as `args` have it
    again.close()
    assert router_pids("filed") == before
    wait_until(lambda: deployed.complete().status_code == 200)


@pytest.mark.faults
def test_all_engines_of_a_deployed_service_are_replaced(deployed, service):
    before = engine_names(deployed)
    done = ask(service, "drain", engine=None)
    assert set(done["left"]) == before
    assert not set(done["engines"]) & before
    wait_until(lambda: deployed.complete().status_code == 200)
