"""Commands for a running service whose routers do not answer every question in time."""

import pytest

from rayinfer.errors import RayinferError
from rayinfer.outputs import EngineStats
from rayinfer.protocols import ServiceStatus
from rayinfer.routing.limits import RouterLimits
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.router import RouterReport
from rayinfer_deployments.service_operations import ServiceOperations


class SlowRouters(ServiceOperations):
    """Operations without Serve: the router leaves the questions with these numbers without an answer."""

    def __init__(self, unanswered, is_deployed=True):
        super().__init__("a", llm_app_args({"models": [{"model": "smollm2-135m"}]}))
        self.unanswered, self.is_deployed = unanswered, is_deployed
        self.engine, self.num_asked = "engine-1", 0

    async def _is_deployed(self):
        return self.is_deployed

    async def _of_all(self, deployment, method, *arguments):
        assert method == "report"
        self.num_asked += 1
        if self.num_asked - 1 in self.unanswered:
            return []
        (model,) = self._args.models
        status = ServiceStatus(ready=True, engines={self.engine: EngineStats()})
        return [RouterReport(router="r", limits=RouterLimits(), models={model.served_name: status})]

    async def _deploy(self, args):
        self._args, self.engine = args, "engine-2"


@pytest.mark.parametrize("unanswered", [{0}, {1}, {2}, {3}, {0, 1, 3}], ids=str)
async def test_draining_goes_on_when_routers_leave_a_question_unanswered(unanswered):
    assert await SlowRouters(unanswered).drain() == {"left": ["engine-1"], "engines": ["engine-2"]}


async def test_draining_a_service_that_is_not_deployed_fails_at_once():
    operations = SlowRouters(set(range(100)), is_deployed=False)
    with pytest.raises(RayinferError, match="no router answers"):
        await operations.drain()
    assert operations.num_asked == 1
