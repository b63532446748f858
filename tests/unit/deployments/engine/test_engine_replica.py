"""Engine facts that a replica reports: the engine's own, as settings may depend on its device."""

import asyncio
from types import SimpleNamespace

import pytest
import ray
from ray import serve

from rayinfer.errors import EngineLeaving
from rayinfer.liveness import LivenessLimits
from rayinfer.outputs import EngineStats
from rayinfer.protocols import ModelDescription
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.discovery.autoscaling_policy import MAX_NUM_SEQS, NUM_RUNNING
from rayinfer_deployments.discovery.engine_report import EngineReport
from rayinfer_deployments.engine.engine_ranks import EngineGroup, EngineResources
from rayinfer_deployments.engine.engine_replica import EngineReplica

DESCRIPTION = ModelDescription(name="m", max_model_len=9, vocab_size=3, created=1, max_num_seqs=256)
REPORT = EngineReport(stats=EngineStats(num_running=200, state="running"), stalled_s=0.0, stall_limit_s=9.0)


class FakeEngine:
    """An engine's actor that is ready at once."""

    def __getattr__(self, method):
        answers = {"start": DESCRIPTION, "report": REPORT}

        def remote(*arguments):
            done = asyncio.get_running_loop().create_future()
            if method != "run":  # which ends with the rank
                done.set_result(answers.get(method))
            return done

        return SimpleNamespace(remote=remote)


class Replica(EngineReplica):
    """Replica without `__del__`, which only Serve awaits."""

    def __del__(self):
        pass


async def test_a_replica_reports_the_max_num_seqs_of_the_engine_not_of_the_settings(monkeypatch):
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(replica_tag="abc"))
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}])
    group = EngineGroup("engine-x", FakeEngine(), [], lambda actor: None)
    config = llm_app_args({"models": [{"model": "m"}]}).models[0].engine_config()
    assert config.max_num_seqs is None
    replica = Replica.__new__(Replica)
    await replica.__init__(config, 1, EngineResources(num_cpus=1, num_gpus=1), 1.0, create_group=lambda *_: group)
    async with asyncio.timeout(5):
        while (reported := await replica.record_autoscaling_stats())[NUM_RUNNING] == 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    assert (reported[MAX_NUM_SEQS], reported[NUM_RUNNING]) == (256, 200)
    await EngineReplica.__del__(replica)


async def test_a_replica_leaves_when_the_node_of_another_rank_drains(monkeypatch):
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(replica_tag="abc"))
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}])
    group = EngineGroup("engine-x", FakeEngine(), [FakeEngine()], lambda actor: None, remote={1: "node-b"})
    config = llm_app_args({"models": [{"model": "m", "tensor_parallel_size": 2}]}).models[0].engine_config()
    draining, replica = {"node-c"}, Replica.__new__(Replica)
    await replica.__init__(
        *(config, 2, EngineResources(num_cpus=1, num_gpus=1), 1.0, LivenessLimits(node_poll_s=0.01)),
        create_group=lambda *_: group,
        find_draining=lambda: set(draining),
    )
    await asyncio.sleep(0.05)
    await replica.check_health()
    draining.add("node-b")
    await asyncio.sleep(0.2)
    with pytest.raises(EngineLeaving):
        await replica.check_health()
    await EngineReplica.__del__(replica)
