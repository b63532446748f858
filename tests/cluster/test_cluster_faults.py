"""Kills, cuts and changes of a cluster while streams run: nothing is lost, and nothing is wrong.

A short selection runs by default; `make test-cluster ARGS="-m cluster"` strikes thirty times.
"""

import time

import httpx
import pytest

from support.cluster.cluster_load import ClusterLoad
from support.cluster.impaired_link import impaired
from support.cluster.ray_nodes import HEAD
from support.cluster.service_config import built_config, model_args
from support.faults.fault_load import record_answers, request_body
from support.faults.fault_models import SERVED_NAME
from support.services.polling import wait_until

pytestmark = pytest.mark.cluster
WORKERS = (2, 3)
NUM_STREAMS = 4
NUM_TOKENS = 64  # 20 ms each
ONE_A_NODE = 1.6  # of a worker's two CPUs
KINDS = ("engine", "router", "proxy", "node", "head")
ROUNDS = [0, *(pytest.param(number, marks=pytest.mark.faults) for number in range(1, 6))]
WHOLE_S = 300.0


def config(model, **changes):
    settings = {"num_replicas": 2, "num_cpus": ONE_A_NODE, "num_kv_blocks": 1024} | changes
    return built_config(model_args(model, SERVED_NAME, **settings), router_on_every_node=True)


@pytest.fixture(scope="module")
def service(nodes, tiny_model):
    nodes.deploy(config(tiny_model))
    wait_whole(nodes)
    return nodes


@pytest.fixture(scope="module")
def expected(service):
    return record_answers(service.url(2), {n: request_body(n, max_tokens=NUM_TOKENS) for n in range(6)}, within_s=120)


def wait_whole(nodes):
    """Wait until each worker has an engine and a router, and answers."""
    for node in WORKERS:
        wait_until(lambda node=node: nodes.processes(node, "EngineActor"), WHOLE_S, 0.5)
        wait_until(lambda node=node: nodes.processes(node, ":router"), WHOLE_S, 0.5)
    nodes.wait_ready(*WORKERS, timeout_s=WHOLE_S)


def under_load(nodes, expected, *through):
    return ClusterLoad([nodes.url(node) for node in through or WORKERS], expected, num_streams=NUM_STREAMS)


def wait_answers(load, more):
    wanted = load.num_answers + more
    wait_until(lambda: load.num_answers >= wanted, WHOLE_S)


def strike(nodes, kind, node):
    """Kill something, and start what does not start again by itself."""
    if kind == "node":
        nodes.network.cut(node)  # no packet says that it is gone
        nodes.kill(node)
        time.sleep(3.0)
        nodes.network.mend(node)
        nodes.start(node)
    elif kind == "head":
        assert nodes.kill(HEAD)
        time.sleep(3.0)
        nodes.start(HEAD)
    else:
        title = {"engine": "EngineActor", "router": ":router", "proxy": "ProxyActor"}[kind]
        assert nodes.kill(node, title)


@pytest.mark.parametrize("number", ROUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_loses_nothing(kind, number, service, expected):
    struck = WORKERS[number % 2]
    with under_load(service, expected) as load:
        wait_answers(load, NUM_STREAMS)
        strike(service, kind, struck)
        struck_s = time.monotonic()
        wait_answers(load, 4 * NUM_STREAMS)
        wait_whole(service)
        whole_s = time.monotonic() - struck_s
        wait_answers(load, NUM_STREAMS)
    print(f"KILL {kind} {number}: {load.report()}; whole after {whole_s:.1f} s")
    assert set(load.verdicts) <= {"exact", "asked again"}, load.report()
    if kind in ("engine", "head"):  # which carry no connection of a client
        assert load.verdicts["asked again"] == 0, load.report()


def test_a_partition_between_router_and_engine_moves_streams(service, expected):
    with under_load(service, expected) as load:
        wait_answers(load, NUM_STREAMS)
        with service.network.parted(*WORKERS):
            time.sleep(10.0)
            before = load.num_answers
            assert before > NUM_STREAMS
        wait_answers(load, 2 * NUM_STREAMS)
    print(f"PARTITION: {load.report()}")
    assert set(load.verdicts) == {"exact"}, load.report()
    wait_whole(service)


def test_a_cut_link_moves_streams_to_the_other_node(service, expected):
    with under_load(service, expected, 2) as load:
        wait_answers(load, NUM_STREAMS)
        service.network.cut(3)
        time.sleep(10.0)
        service.network.mend(3)
        wait_answers(load, 2 * NUM_STREAMS)
    print(f"CUT: {load.report()}")
    assert set(load.verdicts) == {"exact"}, load.report()
    wait_whole(service)


def test_a_slow_link_that_loses_packets_breaks_no_stream(service, expected):
    with under_load(service, expected) as load:
        wait_answers(load, NUM_STREAMS)
        with impaired(service.network, 3, delay_s=0.03, loss=0.02) as link:
            wait_answers(load, 4 * NUM_STREAMS)
        wait_answers(load, NUM_STREAMS)
    print(f"SLOW LINK, {link.num_dropped} of {link.num_dropped + link.num_forwarded} frames lost: {load.report()}")
    assert link.num_dropped > 0
    assert set(load.verdicts) == {"exact"}, load.report()


def test_an_upgrade_of_model_and_code_fails_no_request(service, expected, tiny_model):
    engines = set(service.processes(title="EngineActor"))
    routers = set(service.processes(title=":router"))
    wanted = config(tiny_model, revision="2")
    wanted["applications"][0]["args"]["max_body_bytes"] = 2_000_000  # which routers are built from
    with under_load(service, expected) as load:
        wait_answers(load, NUM_STREAMS)
        service.deploy(wanted)
        wait_until(lambda: not engines & set(service.processes(title="EngineActor")), WHOLE_S, 0.5)
        wait_until(lambda: not routers & set(service.processes(title=":router")), WHOLE_S, 0.5)
        wait_whole(service)
        wait_answers(load, NUM_STREAMS)
    print(f"UPGRADE: {load.report()}")
    assert set(load.verdicts) == {"exact"}, load.report()


def test_the_table_survives_a_restart_of_the_head(service):
    engines = set(service.processes(title="EngineActor"))
    service.kill(HEAD)
    wait_until(lambda: not service.processes(HEAD))
    service.start(HEAD)
    wait_until(lambda: service.processes(HEAD, "ServeController"), WHOLE_S, 0.5)
    status = service.rayinfer("status", "--json")
    assert '"ready": true' in status
    assert set(service.processes(title="EngineActor")) == engines  # none was started again
    body = request_body(0, max_tokens=4)
    assert httpx.post(f"{service.url(3)}/v1/completions", json=body, timeout=60, trust_env=False).status_code == 200
