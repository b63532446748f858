"""Rendezvous of a rank group: authenticated by a key, each rank once, with a timeout."""

import gc
import socket
import threading
import time
import weakref
from contextlib import suppress

import psutil
import pytest
import torch
from torch.distributed import HashStore

from rayinfer.engine.ranks import rank_group, rendezvous
from rayinfer.engine.ranks.control_connection import LineLost
from rayinfer.engine.ranks.plan_codec import Failed
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rank_store import RankStore, ask_over
from rayinfer.engine.ranks.rendezvous import Rendezvous, close_all, join_rendezvous, open_rendezvous
from rayinfer.engine.ranks.torch_groups import open_groups
from rayinfer.errors import EngineDead
from rayinfer.tensor_parallel import RankCoordinates

SIZES = (2, 2)  # tensor ranks, stages
SOON_S = 10.0


class Others:
    """The ranks as whoever started them sees them: `check` does what it is given, and all are stopped."""

    def __init__(self, check=lambda: None):
        self.check = check
        self.graces = []

    def is_stopped(self, rank):
        return True

    def end(self, grace_s):
        self.graces.append(grace_s)


@pytest.fixture
def host():
    host = open_rendezvous(timeout_s=20.0)
    yield host
    host.close()


def in_threads(*actions):
    """Return what each of them returns, all at the same time; raises what one of them raised."""
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


def test_ranks_meet_in_their_stages_and_agree_on_the_least(host):
    def be(rank):
        place = RankCoordinates(rank, *SIZES)
        group = RankGroup.join(place, host.rendezvous) if rank else RankGroup.host(place, host)
        try:
            least = group.agree_least([10 + rank, 20 - rank])
            total = group.share.group.all_reduce(torch.tensor([float(10**rank)])).item()
            return group.share.place, least, total, group.everybody.size(), group.communication_s > 0
        finally:
            group.close()

    met = in_threads(*(lambda rank=rank: be(rank) for rank in range(4)))
    assert met == [
        (RankCoordinates(rank, *SIZES), [10, 17], 11.0 if rank < 2 else 1100.0, 4, True) for rank in range(4)
    ]


def test_rank_0_stops_waiting_when_it_is_told_that_nobody_will_come(host):
    def check():
        raise EngineDead("rank 1 ended with code 9")

    with pytest.raises(EngineDead, match="rank 1 ended with code 9"):
        RankGroup.host(RankCoordinates(0, 2, 1), host, Others(check))


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_a_rank_that_is_frozen_before_the_groups_are_built_is_ended_and_named(sizes):
    host, others = open_rendezvous(timeout_s=0.4), Others()

    def meet():
        with pytest.raises(EngineDead, match=r"rank 1 is lost: it has said nothing for 0\.4 s"):
            RankGroup.host(RankCoordinates(0, *sizes), host, others)

    _, lines = in_threads(meet, lambda: join_rendezvous(RankCoordinates(1, *sizes), host.rendezvous))
    assert others.graces == [0.0]
    close_all([lines.commands, lines.beats, lines.store])
    host.close()


def pair_of(host):
    return in_threads(
        lambda: RankGroup.host(RankCoordinates(0, 2, 1), host),
        lambda: RankGroup.join(RankCoordinates(1, 2, 1), host.rendezvous),
    )


def test_waits_are_broken_off_even_if_what_ends_the_ranks_fails(host):
    def fail():
        raise OSError("no more processes")

    groups = pair_of(host)
    groups[0].on_loss = fail
    with pytest.raises(OSError, match="no more processes"):
        rank_group._lose(weakref.ref(groups[0]), 1, 3.0)
    with pytest.raises(LineLost, match="hung up"):
        groups[1].lines[0].receive(SOON_S)
    for group in groups:
        group.close()


def test_groups_that_nobody_has_any_more_do_not_beat(host):
    before = set(threading.enumerate())
    groups = pair_of(host)
    beating = [thread for thread in threading.enumerate() if thread.name == "beats" and thread not in before]
    assert len(beating) == 2
    del groups
    gc.collect()
    for thread in beating:
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_rank_0_stops_waiting_when_its_door_is_closed(host):
    threading.Timer(0.3, host.close).start()
    with pytest.raises(EngineDead, match="port for the other ranks is closed"):
        RankGroup.host(RankCoordinates(0, 2, 1), host)


def test_rank_0_does_not_wait_for_ever(host, monkeypatch):
    monkeypatch.setattr(rendezvous, "START_TIMEOUT_S", 0.3)
    with pytest.raises(EngineDead, match=r"ranks \[1, 2, 3\] did not come within 0\.3 s"):
        RankGroup.host(RankCoordinates(0, *SIZES), host)


def test_a_rank_that_finds_nobody_says_so():
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(EngineDead, match=f"rank 0 is not at 127.0.0.1:{port}"):
        RankGroup.join(RankCoordinates(1, 2, 1), Rendezvous("127.0.0.1", port, "key"))


def test_who_fails_while_models_are_loaded_is_named_to_rank_0(host):
    def fail():
        group = RankGroup.join(RankCoordinates(1, 2, 1), host.rendezvous)
        group.lines[0].send(Failed("ModelLoadError: no such file"), 5.0)
        group.close()

    def agree():
        group = RankGroup.host(RankCoordinates(0, 2, 1), host)
        try:
            with pytest.raises(EngineDead, match="ModelLoadError: no such file"):
                group.agree_least([1])
        finally:
            group.close()

    in_threads(fail, agree)


class LeavesBeforeConnecting(RankStore):
    """Stores where gloo's other end is, and never comes there."""

    def get(self, key):
        self.lines.commands.hang_up()  # as the process's end does
        self.has_left.set()
        self.may_end.wait()
        raise LookupError(key)


def test_a_rank_that_is_killed_between_saying_where_it_is_and_connecting_is_noticed_at_once(host, monkeypatch):
    monkeypatch.setattr(LeavesBeforeConnecting, "wait", lambda self, keys, timeout=None: None)
    has_left, may_end = threading.Event(), threading.Event()

    def leave():
        lines = join_rendezvous(RankCoordinates(1, 2, 1), host.rendezvous)
        store = LeavesBeforeConnecting(ask_over(lines.store), SOON_S)
        store.lines, store.has_left, store.may_end = lines, has_left, may_end

        def open_and_leave():
            with suppress(LookupError, RuntimeError):
                open_groups(RankCoordinates(1, 2, 1), store, torch.device("cpu"), "127.0.0.1", host.rendezvous.key)

        threading.Thread(target=open_and_leave, daemon=True).start()
        assert has_left.wait(SOON_S)
        return lines

    def meet():
        with pytest.raises(EngineDead, match="rank 1 is lost: it has hung up"):
            RankGroup.host(RankCoordinates(0, 2, 1), host)
        return time.monotonic()

    started = time.monotonic()
    noticed, lines = in_threads(meet, leave)
    may_end.set()
    assert noticed - started < 5.0
    close_all([lines.commands, lines.beats, lines.store])


def test_what_is_connected_to_gloo_without_the_key_is_no_rank():
    store = HashStore()

    def be(rank, key):
        with pytest.raises(EngineDead, match=f"connected as rank {1 - rank} of a group does not know"):
            open_groups(RankCoordinates(rank, 2, 1), store, torch.device("cpu"), "127.0.0.1", key)

    in_threads(lambda: be(0, "key"), lambda: be(1, "another key"))


def test_ranks_of_one_machine_listen_on_the_loopback_alone_and_no_secret_is_stored(host):
    before = listening()
    groups = in_threads(*(lambda rank=rank: met_as(rank, host) for rank in range(4)))
    opened = listening() - before
    assert {address.ip for address in opened} == {"127.0.0.1"}
    assert len(opened) == 8  # gloo's, for two groups of each rank: no store's
    stored = groups[0]._store_values._values
    assert stored
    assert all(host.rendezvous.key.encode() not in key.encode() + value for key, value in stored.items())
    for group in groups:
        group.close()


def listening():
    connections = psutil.Process().net_connections()
    return {connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN}


def met_as(rank, host):
    place = RankCoordinates(rank, *SIZES)
    return RankGroup.join(place, host.rendezvous) if rank else RankGroup.host(place, host)


def test_the_doors_are_open_to_this_machine_alone(host):
    assert host._listener.getsockname()[0] == "127.0.0.1"
