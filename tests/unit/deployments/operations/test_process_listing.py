from rayinfer_deployments.operations.process_listing import Actor, identify

ACTORS = [
    Actor(pid=1, class_name="EngineActor", name="rayinfer-engine-abc"),
    Actor(pid=2, class_name="ServeReplica:rayinfer:engine-0-m", name="SERVE_REPLICA::rayinfer#engine-0-m#abc"),
    Actor(pid=3, class_name="ServeReplica:rayinfer:router", name="SERVE_REPLICA::rayinfer#router#def"),
    Actor(pid=4, class_name="ProxyActor", name="SERVE_PROXY_ACTOR-1"),
    Actor(pid=5, class_name="ServeController", name="SERVE_CONTROLLER_ACTOR"),
    Actor(pid=6, class_name="ServeReplica:other:router", name="SERVE_REPLICA::other#router#ghi"),
    Actor(pid=7, class_name="EngineActor", name="rayinfer-engine-xyz"),
    Actor(pid=8, class_name="Counter", name=""),
]


def test_every_process_of_the_service_has_its_role_and_no_other_is_listed():
    found = identify(ACTORS, "rayinfer", {})
    assert [(process.pid, process.role) for process in found] == [
        (5, "controller"),
        (4, "proxy"),
        (3, "router"),
        (2, "engine_replica"),
        (1, "engine"),
    ]


def test_ps_shows_an_engines_group_rank_replica_and_load():
    engine = identify(ACTORS, "rayinfer", {"rayinfer-engine-abc": 4, "router": 2})[-1]
    assert (engine.group, engine.rank, engine.replica, engine.load) == ("rayinfer-engine-abc", 0, "abc", 4)


def test_the_replica_belongs_to_its_engines_group_and_the_router_has_the_queue():
    found = {process.role: process for process in identify(ACTORS, "rayinfer", {"router": 2})}
    assert found["engine_replica"].group == found["engine"].group
    assert found["engine_replica"].rank is None
    assert found["router"].load == 2


def test_every_rank_of_an_engine_is_listed_and_the_first_one_alone_has_the_load():
    ranks = [
        Actor(pid=pid, class_name="RankActor", name=f"rayinfer-engine-{name}")
        for pid, name in [(12, "abc-rank-2"), (11, "abc-rank-1"), (13, "xyz-rank-1")]
    ]
    found = identify([*ranks, *ACTORS], "rayinfer", {"rayinfer-engine-abc": 4})
    engine = [process for process in found if process.role == "engine"]
    assert [(process.pid, process.rank, process.load) for process in engine] == [
        (1, 0, 4),
        (11, 1, None),
        (12, 2, None),
    ]
    assert {(process.group, process.replica) for process in engine} == {("rayinfer-engine-abc", "abc")}
