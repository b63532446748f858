import pytest

from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.operations.application_replicas import ApplicationReplicas
from rayinfer_deployments.operations.placement_watcher import NoRoom
from rayinfer_deployments.operations.service_operations import ServiceOperations

AUTOSCALING = {"min_replicas": 0, "max_replicas": 4, "idle_timeout_s": 60}


class Engines(ApplicationReplicas):
    async def engines(self):
        return {"e1": "a", "e2": "a", "e3": "b"}


class FullCluster(ServiceOperations):
    """Three models of one service, of which another grows while there is no room for more of the first."""

    def __init__(self):
        models = [{"name": name, "model": f"/{name}", "autoscaling": AUTOSCALING} for name in "abc"]
        super().__init__("app", llm_app_args({"models": models}))
        self._replicas = Engines("app")
        self.deployed = []

    async def _deploy(self, args):
        self.deployed.append(args)
        self._args = args


class Room:
    def __init__(self, application, deployments):
        assert (application, list(deployments)) == ("app", ["engine-0-a"])

    async def check(self):
        raise NoRoom("there is no room")


async def test_where_there_is_no_room_one_model_goes_back_and_nobody_else_changes(monkeypatch):
    monkeypatch.setattr("rayinfer_deployments.operations.service_operations.RoomWatch", Room)
    cluster = FullCluster()
    original = cluster._args.models
    with pytest.raises(NoRoom, match="their number stays as it was"):
        await cluster.scale(4, "a")
    wanted, kept = (args.models for args in cluster.deployed)
    assert (wanted[0].autoscaling.min_replicas, wanted[0].autoscaling.max_replicas) == (4, 4)
    assert (kept[0].autoscaling.min_replicas, kept[0].autoscaling.initial_replicas) == (0, 2)
    assert wanted[1:] == kept[1:] == original[1:]  # Serve takes any change for a new beginning
