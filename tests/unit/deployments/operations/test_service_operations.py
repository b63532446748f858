"""Commands for a running service whose routers do not answer every question in time."""

import pytest

from rayinfer.errors import RayinferError
from rayinfer.outputs import EngineStats
from rayinfer.protocols import ServiceStatus
from rayinfer.routing.limits import RouterLimits
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.operations.application_replicas import ApplicationReplicas
from rayinfer_deployments.operations.service_operations import ServiceOperations
from rayinfer_deployments.router.router import RouterReport


class SlowReplicas(ApplicationReplicas):
    """One router that leaves the questions with these numbers without an answer."""

    def __init__(self, model, unanswered, is_known):
        super().__init__("a")
        self.model, self.unanswered, self.is_known = model, unanswered, is_known
        self.engine, self.num_asked = "engine-1", 0

    async def is_deployed(self):
        return self.is_known

    async def of_all(self, deployment, method, *arguments):
        self.num_asked += 1
        if self.num_asked - 1 in self.unanswered:
            return []
        status = ServiceStatus(ready=True, engines={self.engine: EngineStats()})
        return [RouterReport(router="r", limits=RouterLimits(), models={self.model: status})]


class SlowRouters(ServiceOperations):
    """Operations without Serve."""

    def __init__(self, unanswered, is_deployed=True):
        args = llm_app_args({"models": [{"model": "smollm2-135m"}]})
        super().__init__("a", args)
        self._replicas = SlowReplicas(args.models[0].served_name, unanswered, is_deployed)

    @property
    def num_asked(self):
        return self._replicas.num_asked

    async def _deploy(self, args):
        self._args, self._replicas.engine = args, "engine-2"


@pytest.mark.parametrize("unanswered", [{0}, {1}, {2}, {3}, {0, 1, 3}], ids=str)
async def test_draining_goes_on_when_routers_leave_a_question_unanswered(unanswered):
    assert await SlowRouters(unanswered).drain() == {"left": ["engine-1"], "engines": ["engine-2"]}


async def test_draining_a_service_that_is_not_deployed_fails_at_once():
    operations = SlowRouters(set(range(100)), is_deployed=False)
    with pytest.raises(RayinferError, match="no router answers"):
        await operations.drain()
    assert operations.num_asked == 1


class SlowReplicasOfEngines(SlowReplicas):
    """Two engines, of which one gets to know that it is to leave although its answer is late."""

    def __init__(self, model, late, is_over):
        super().__init__(model, set(), True)
        self.late, self.is_over, self.engines_now = late, is_over, ["engine-1", "engine-2"]

    async def of_all(self, deployment, method, *arguments):
        if method == "leave":
            self.engines_now = ["engine-2", "engine-3"]
            self.late -= 1
            return [] if self.late >= 0 else [False, True]
        status = ServiceStatus(ready=True, engines={name: EngineStats() for name in self.engines_now})
        return [RouterReport(router="r", limits=RouterLimits(), models={self.model: status})]

    async def is_gone(self, engine):
        return self.is_over and engine == "engine-1"


class SlowEngines(ServiceOperations):
    """Operations without Serve, on two engines."""

    leave_s = 1.5

    def __init__(self, late, is_over=False):
        args = llm_app_args({"models": [{"model": "smollm2-135m", "num_replicas": 2}]})
        super().__init__("a", args)
        self._replicas = SlowReplicasOfEngines(args.models[0].served_name, late, is_over)


@pytest.mark.parametrize(("late", "is_over"), [(0, False), (2, False), (100, True)])
async def test_an_engine_whose_answer_is_late_is_asked_again_to_leave(late, is_over):
    assert await SlowEngines(late, is_over).drain("engine-1") == {
        "left": ["engine-1"],
        "engines": ["engine-2", "engine-3"],
    }


async def test_an_engine_that_never_answers_is_named():
    with pytest.raises(RayinferError, match="engine-1 does not answer"):
        await SlowEngines(100).drain("engine-1")
