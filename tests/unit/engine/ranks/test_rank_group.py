"""Rank groups: they open together, agree on sizes, and stop waiting for a rank that is lost."""

import gc
import threading
import time
from contextlib import suppress

import psutil
import pytest
import torch
from torch.distributed import HashStore

from rayinfer.engine.ranks.control_connection import ConnectionLost
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rank_messages import Failed
from rayinfer.engine.ranks.rank_store import RankStore, call_over
from rayinfer.engine.ranks.rendezvous import Rendezvous, RendezvousHost, join_rendezvous
from rayinfer.engine.ranks.torch_groups import open_groups
from rayinfer.errors import EngineDead
from rayinfer.liveness import LivenessLimits
from rayinfer.tensor_parallel import RankCoordinates
from support.services.free_ports import free_port

SIZES = (2, 2)  # tensor ranks, stages
SOON_S = 10.0


class Others:
    """The ranks as seen by the process that started them; all count as stopped."""

    def __init__(self, check=lambda: None):
        self.check = check
        self.graces = []

    def is_stopped(self, rank):
        return True

    def end(self, grace_s):
        self.graces.append(grace_s)


@pytest.fixture
def host():
    host = RendezvousHost(timeout_s=20.0)
    yield host
    host.close()


def in_threads(*actions):
    """Run all at the same time; returns their results, raises what one of them raised."""
    results, errors = [None] * len(actions), []

    def run(index, action):
        try:
            results[index] = action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert errors or not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def open_group(rank, host, sizes=SIZES):
    coordinates = RankCoordinates(rank, *sizes)
    return RankGroup.join(coordinates, host.rendezvous) if rank else RankGroup.host(coordinates, host)


def pair_of(host):
    return in_threads(*(lambda rank=rank: open_group(rank, host, (2, 1)) for rank in range(2)))


def test_ranks_group_by_stage_and_agree_on_the_minimum(host):
    def run(rank):
        group = open_group(rank, host)
        try:
            least = group.reduce_min([10 + rank, 20 - rank])
            total = group.shard.group.all_reduce(torch.tensor([float(10**rank)])).item()
            return group.shard.coordinates, least, total, group.world.size(), group.communication_s > 0
        finally:
            group.close()

    assert in_threads(*(lambda rank=rank: run(rank) for rank in range(4))) == [
        (RankCoordinates(rank, *SIZES), [10, 17], 11.0 if rank < 2 else 1100.0, 4, True) for rank in range(4)
    ]


def test_rank_0_stops_waiting_when_a_rank_will_not_come(host):
    def check():
        raise EngineDead("rank 1 ended with code 9")

    with pytest.raises(EngineDead, match="rank 1 ended with code 9"):
        RankGroup.host(RankCoordinates(0, 2, 1), host, Others(check))


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_a_rank_that_hangs_before_the_groups_are_built_is_ended_and_named(sizes):
    host, others = RendezvousHost(timeout_s=0.4), Others()

    def run():
        with pytest.raises(EngineDead, match=r"rank 1 is lost: it has sent no heartbeat for 0\.4 s"):
            RankGroup.host(RankCoordinates(0, *sizes), host, others)

    _, connections = in_threads(run, lambda: join_rendezvous(RankCoordinates(1, *sizes), host.rendezvous))
    assert others.graces == [0.0]
    connections.close()
    host.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_waits_are_aborted_even_if_the_ranks_cannot_be_ended():
    def fail():
        raise OSError("no more processes")

    host = RendezvousHost(timeout_s=0.4)
    groups = pair_of(host)
    groups[0].on_loss = fail
    groups[1].monitor.stop()
    with pytest.raises(ConnectionLost, match="closed"):
        groups[1].connections[0].receive(SOON_S)
    for group in groups:
        group.close()


def test_unreferenced_groups_send_no_heartbeats(host):
    before = set(threading.enumerate())
    groups = pair_of(host)
    sending = [thread for thread in threading.enumerate() if thread.name == "heartbeats" and thread not in before]
    assert len(sending) == 2
    del groups
    gc.collect()
    for thread in sending:
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_rank_0_stops_waiting_when_its_listener_is_closed(host):
    threading.Timer(0.3, host.close).start()
    with pytest.raises(EngineDead, match="port for the other ranks is closed"):
        RankGroup.host(RankCoordinates(0, 2, 1), host)


def test_rank_0_waits_no_longer_than_the_start_timeout():
    host = RendezvousHost(limits=LivenessLimits(start_timeout_s=0.3))
    with pytest.raises(EngineDead, match=r"ranks \[1, 2, 3\] did not connect within 0\.3 s"):
        RankGroup.host(RankCoordinates(0, *SIZES), host)
    host.close()


def test_a_rank_without_rank_0_raises():
    port = free_port()
    with pytest.raises(EngineDead, match=f"rank 0 is not at 127.0.0.1:{port}"):
        RankGroup.join(RankCoordinates(1, 2, 1), Rendezvous("127.0.0.1", port, "key"))


def test_a_rank_that_fails_while_models_are_loaded_is_named_to_rank_0(host):
    def fail():
        group = open_group(1, host, (2, 1))
        group.connections[0].send(Failed("ModelLoadError: no such file"), 5.0)
        group.close()

    def reduce():
        group = open_group(0, host, (2, 1))
        try:
            with pytest.raises(EngineDead, match="ModelLoadError: no such file"):
                group.reduce_min([1])
        finally:
            group.close()

    in_threads(fail, reduce)


class LeavesBeforeConnecting(RankStore):
    """A rank's store that closes its connections when gloo reads the other end's address."""

    def wait(self, keys, timeout=None):
        pass

    def get(self, key):
        self.connections.commands.shutdown()  # as the process's exit does
        self.has_left.set()
        self.may_end.wait()
        raise LookupError(key)


def test_a_rank_killed_between_storing_its_address_and_connecting_is_noticed_at_once(host):
    has_left, may_end = threading.Event(), threading.Event()

    def leave():
        connections = join_rendezvous(RankCoordinates(1, 2, 1), host.rendezvous)
        store = LeavesBeforeConnecting(call_over(connections.store), SOON_S)
        store.connections, store.has_left, store.may_end = connections, has_left, may_end

        def open_and_leave():
            with suppress(LookupError, RuntimeError):
                open_groups(RankCoordinates(1, 2, 1), store, torch.device("cpu"), "127.0.0.1", host.rendezvous.key)

        threading.Thread(target=open_and_leave, daemon=True).start()
        assert has_left.wait(SOON_S)
        return connections

    def wait():
        with pytest.raises(EngineDead, match="rank 1 is lost: it has closed the connection"):
            open_group(0, host, (2, 1))
        return time.monotonic()

    started = time.monotonic()
    noticed, connections = in_threads(wait, leave)
    may_end.set()
    assert noticed - started < 5.0
    connections.close()


def test_a_gloo_peer_without_the_key_is_rejected():
    store = HashStore()

    def run(rank, key):
        with pytest.raises(EngineDead, match=f"connected as rank {1 - rank} of a group does not have"):
            open_groups(RankCoordinates(rank, 2, 1), store, torch.device("cpu"), "127.0.0.1", key)

    in_threads(lambda: run(0, "key"), lambda: run(1, "another key"))


def test_ranks_of_one_machine_listen_on_the_loopback_alone(host):
    before = listening()
    groups = in_threads(*(lambda rank=rank: open_group(rank, host) for rank in range(4)))
    opened = listening() - before
    assert {address.ip for address in opened} == {"127.0.0.1"}
    assert len(opened) == 8  # gloo's, for two groups of each rank: no store's
    for group in groups:
        group.close()


def test_no_secret_is_stored():
    store = HashStore()
    in_threads(
        *(
            lambda rank=rank: open_groups(
                RankCoordinates(rank, 2, 1), store, torch.device("cpu"), "127.0.0.1", "secret-key"
            )
            for rank in range(2)
        )
    )
    keys = store.list_keys()
    assert keys
    assert all(b"secret-key" not in key.encode() + store.get(key) for key in keys)


def listening():
    connections = psutil.Process().net_connections()
    return {connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN}


def test_the_rendezvous_listens_on_the_loopback_alone():
    before = listening()
    host = RendezvousHost()
    assert {address.ip for address in listening() - before} == {"127.0.0.1"}
    host.close()
