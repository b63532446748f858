import asyncio

import pytest

from rayinfer_deployments.operations.placement_watcher import InsufficientResources, PlacementWatcher, unplaced_engines

TAKES = {0: {"CPU": 0.6, "GPU": 1.0}, 1: {"CPU": 0.5, "GPU": 1.0}}


def group(name="SERVE_REPLICA::llm#engine-0-tiny#abc", state="PENDING", scheduling="NO_RESOURCES"):
    return {"name": name, "state": state, "bundles": TAKES, "stats": {"scheduling_state": scheduling}}


def test_an_unplaced_engine_is_listed_with_the_resources_it_needs_on_one_node():
    table = {
        "a": group(),
        "b": group(scheduling="INFEASIBLE"),
        "c": group(state="CREATED", scheduling="FINISHED"),
        "d": group(scheduling="SCHEDULING_STARTED"),
        "e": group(name="SERVE_REPLICA::another#engine-0-tiny#abc"),
        "f": group(name="SERVE_REPLICA::llm#engine-1-other#abc"),  # whose number is not changed
    }
    assert unplaced_engines("llm", ["engine-0-tiny"], table) == ["1.1 CPU and 2 GPU"] * 2


class Cluster:
    def __init__(self):
        self.table = {}
        self.is_any_replica_stopping = False

    def watch(self):
        return PlacementWatcher(
            *("llm", ["engine-0-tiny"], lambda: self.table, lambda application: self.is_any_replica_stopping),
            limit_s=0.2,
            check_interval_s=0.0,
        )


async def look_for(watch, seconds):
    for _ in range(10):
        await watch.check()
        await asyncio.sleep(seconds / 10)


async def test_resources_are_insufficient_when_that_lasts_and_no_replica_is_stopping():
    cluster = Cluster()
    watch = cluster.watch()
    await look_for(watch, 0.4)
    cluster.table, cluster.is_any_replica_stopping = {"a": group()}, True
    await look_for(watch, 0.4)
    cluster.is_any_replica_stopping = False
    await look_for(watch, 0.1)
    cluster.table = {}
    await watch.check()
    cluster.table = {"a": group()}
    await look_for(watch, 0.1)  # it counts anew
    with pytest.raises(InsufficientResources, match=r"no resources for 1 engine: no node has 1\.1 CPU and 2 GPU free"):
        await look_for(watch, 0.6)
