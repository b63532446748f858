"""Nodes that leave: drained by an operator, or after a spot notice, which is Ray's own drain request."""

import time

import pytest

from support.cluster.cluster_load import ClusterLoad
from support.cluster.ray_nodes import RAY
from support.cluster.service_config import built_config, model_args
from support.faults.fault_load import record_answers, request_body
from support.faults.fault_models import SERVED_NAME
from support.services.polling import wait_until

pytestmark = pytest.mark.cluster
WORKERS = (2, 3)
NUM_STREAMS = 4
WITHIN_S = 300.0


@pytest.fixture(scope="module")
def service(nodes, tiny_model):
    nodes.deploy(built_config(model_args(tiny_model, SERVED_NAME, num_cpus=0.5), router_on_every_node=True))
    wait_whole(nodes)
    return nodes


@pytest.fixture(scope="module")
def expected(service):
    return record_answers(service.url(2), {n: request_body(n) for n in range(6)}, within_s=120)


def wait_whole(nodes):
    for node in WORKERS:
        wait_until(lambda node=node: nodes.processes(node, ":router"), WITHIN_S, 0.5)
    wait_until(lambda: len(nodes.processes(title="EngineActor")) == 1, WITHIN_S, 0.5)
    nodes.wait_ready(*WORKERS, timeout_s=WITHIN_S)


def request_drain(nodes, node):
    """Send what an autoscaler sends after a spot notice."""
    node_id = nodes.ask("node_id", nodes.network.address(node))
    command = [
        *(*RAY, "drain-node", "--node-id", node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"),
        *("--reason-message", "spot notice", "--deadline-remaining-seconds", "120"),
    ]
    assert nodes.run(1, command).wait(WITHIN_S) == 0


@pytest.mark.parametrize("way", ["operator", "spot notice"])
def test_engines_and_streams_leave_a_node_before_it_goes(way, service, expected):
    leaving = next(node for node in WORKERS if service.processes(node, "EngineActor"))
    staying = next(node for node in WORKERS if node != leaving)
    with ClusterLoad([service.url(staying)], expected, num_streams=NUM_STREAMS) as load:
        wait_until(lambda: load.num_answers >= NUM_STREAMS, WITHIN_S)
        started_s = time.monotonic()
        if way == "operator":
            print(service.rayinfer("drain", "--node", service.network.address(leaving), "--deadline", "120"))
        else:
            request_drain(service, leaving)
        wait_until(lambda: service.processes(staying, "EngineActor"), WITHIN_S)
        wait_until(lambda: not service.processes(leaving, "EngineActor"), WITHIN_S)
        wait_until(lambda: not service.processes(leaving, ":router"), WITHIN_S)
        moved_s = time.monotonic() - started_s
        before = load.num_answers
        wait_until(lambda: load.num_answers >= before + NUM_STREAMS, WITHIN_S)
    print(f"DRAIN {way}: {load.report()}; moved after {moved_s:.1f} s")
    assert set(load.verdicts) == {"exact"}, load.report()
    service.kill(leaving)
    service.start(leaving)
    wait_whole(service)
