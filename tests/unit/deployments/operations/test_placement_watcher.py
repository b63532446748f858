import asyncio

import pytest

from rayinfer_deployments.operations.placement_watcher import NoRoom, RoomWatch, waiting_for_room

TAKES = {0: {"CPU": 0.6, "GPU": 1.0}, 1: {"CPU": 0.5, "GPU": 1.0}}


def group(name="SERVE_REPLICA::llm#engine-0-tiny#abc", state="PENDING", scheduling="NO_RESOURCES"):
    return {"name": name, "state": state, "bundles": TAKES, "stats": {"scheduling_state": scheduling}}


def test_an_engine_that_finds_no_room_says_what_it_takes_on_one_node():
    table = {
        "a": group(),
        "b": group(scheduling="INFEASIBLE"),
        "c": group(state="CREATED", scheduling="FINISHED"),
        "d": group(scheduling="SCHEDULING_STARTED"),
        "e": group(name="SERVE_REPLICA::another#engine-0-tiny#abc"),
        "f": group(name="SERVE_REPLICA::llm#engine-1-other#abc"),  # whose number nobody changes
    }
    assert waiting_for_room("llm", ["engine-0-tiny"], table) == ["1.1 CPU and 2 GPU"] * 2


class Cluster:
    def __init__(self):
        self.table = {}
        self.is_anybody_leaving = False

    def watch(self, monkeypatch):
        monkeypatch.setattr("rayinfer_deployments.operations.placement_watcher.LOOK_INTERVAL_S", 0.0)
        return RoomWatch(
            *("llm", ["engine-0-tiny"], lambda: self.table, lambda application: self.is_anybody_leaving),
            without_room_s=0.2,
        )


async def look_for(watch, seconds):
    for _ in range(10):
        await watch.check()
        await asyncio.sleep(seconds / 10)


async def test_there_is_no_room_when_that_lasts_and_nobody_is_about_to_leave_any(monkeypatch):
    cluster = Cluster()
    watch = cluster.watch(monkeypatch)
    await look_for(watch, 0.4)
    cluster.table, cluster.is_anybody_leaving = {"a": group()}, True
    await look_for(watch, 0.4)
    cluster.is_anybody_leaving = False
    await look_for(watch, 0.1)
    cluster.table = {}
    await watch.check()
    cluster.table = {"a": group()}
    await look_for(watch, 0.1)  # it counts anew
    with pytest.raises(NoRoom, match=r"no room for 1 engine: no node has 1\.1 CPU and 2 GPU free"):
        await look_for(watch, 0.6)
