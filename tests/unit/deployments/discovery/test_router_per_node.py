"""Number of routers where every node has one."""

from types import SimpleNamespace

import pytest
from ray import cloudpickle

from rayinfer_deployments.cluster.cluster_nodes import ClusterNode
from rayinfer_deployments.discovery.router_per_node import LOOK_INTERVAL_S, RouterPerNodePolicy, count_places


def node(node_id, num_cpus):
    return ClusterNode(node_id=node_id, address="", name="", is_head=False, num_cpus=num_cpus)


@pytest.mark.parametrize(
    ("draining", "num_cpus", "count"), [(set(), 0.1, 2), ({"b"}, 0.1, 1), (set(), 2.5, 1), ({"c"}, 0, 2)]
)
def test_nodes_with_room_that_stay_are_counted(draining, num_cpus, count):
    assert count_places([node("a", 0), node("b", 2), node("c", 4)], draining, num_cpus) == count


def test_the_number_follows_the_nodes_and_outlasts_a_restart_of_the_head():
    counts, asked = [], []

    def count(num_cpus):
        asked.append(num_cpus)
        return counts.pop(0)  # IndexError: Ray does not answer

    policy = RouterPerNodePolicy(0.1, count)

    def wanted(time_s):
        return policy(SimpleNamespace(current_time=time_s, target_num_replicas=5))[0]

    assert wanted(0.0) == 5  # not known yet
    counts[:] = [2]
    assert wanted(LOOK_INTERVAL_S) == 2
    assert wanted(LOOK_INTERVAL_S + 0.1) == 2
    assert asked == [0.1] * 2  # once a second
    assert wanted(2 * LOOK_INTERVAL_S) == 2
    counts[:] = [0]
    assert wanted(3 * LOOK_INTERVAL_S) == 1


def test_the_policy_can_be_sent_to_the_controller():
    assert cloudpickle.loads(cloudpickle.dumps(RouterPerNodePolicy))(num_cpus=0.1) is not None
