import pytest

from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.operations.application_replicas import ApplicationReplicas
from rayinfer_deployments.operations.placement_watcher import InsufficientResources
from rayinfer_deployments.operations.service_operations import ServiceOperations

AUTOSCALING = {"min_replicas": 0, "max_replicas": 4, "idle_timeout_s": 60}


class Engines(ApplicationReplicas):
    async def engines(self):
        return {"e1": "a", "e2": "a", "e3": "b"}


class FullWatcher:
    def __init__(self, application, deployments):
        assert (application, list(deployments)) == ("app", ["engine-0-a"])

    async def check(self):
        raise InsufficientResources("no resources")


class FullCluster(ServiceOperations):
    """Three models of one service, of which another grows while no node can place more of the first."""

    def __init__(self):
        models = [{"name": name, "model": f"/{name}", "autoscaling": AUTOSCALING} for name in "abc"]
        self.args = llm_app_args({"models": models})
        super().__init__("app", self.args, placement_watcher=FullWatcher)
        self._replicas = Engines("app")
        self.deployed = []

    async def _deploy(self, args):
        self.deployed.append(args)
        self._args = args


async def test_without_resources_only_the_scaled_model_is_restored():
    cluster = FullCluster()
    original = cluster.args.models
    with pytest.raises(InsufficientResources, match="the number of engines is unchanged"):
        await cluster.scale(4, "a")
    wanted, kept = (args.models for args in cluster.deployed)
    assert (wanted[0].autoscaling.min_replicas, wanted[0].autoscaling.max_replicas) == (4, 4)
    assert (kept[0].autoscaling.min_replicas, kept[0].autoscaling.initial_replicas) == (0, 2)
    assert wanted[1:] == kept[1:] == original[1:]  # Serve takes any change for a new beginning
