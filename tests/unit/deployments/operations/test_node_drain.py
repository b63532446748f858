"""Actors of an application that a drained node still has."""

from rayinfer_deployments.operations.node_drain import living_in, on_node


def row(name, node, state="ALIVE"):
    return {"Name": name, "State": state, "Address": {"NodeID": node}}


def test_replicas_and_all_ranks_of_their_engines_count():
    table = [
        row("SERVE_REPLICA::llm#router#r1", "a"),
        row("SERVE_REPLICA::llm#engine-0-tiny#e1", "a"),
        row("rayinfer-engine-e1", "a"),
        row("rayinfer-engine-e1-rank-1", "b"),
        row("SERVE_REPLICA::llm#engine-0-tiny#e2", "b", state="DEAD"),
        row("rayinfer-engine-e2", "b"),  # whose replica has gone: Ray ends it
        row("SERVE_REPLICA::other#router#o1", "b"),
        row("SERVE_CONTROLLER_ACTOR", "a"),
        row("", "b"),
    ]
    placed = living_in(table, "llm")
    assert on_node(placed, "a") == ["engine-0-tiny#e1", "rayinfer-engine-e1", "router#r1"]
    assert on_node(placed, "b") == ["rayinfer-engine-e1-rank-1"]
    assert on_node(placed, "c") == []
