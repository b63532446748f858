"""How ranks meet: by a key, each once, and not for ever."""

import socket
import threading

import pytest
import torch

from rayinfer.engine import rendezvous
from rayinfer.engine.control_line import ControlLine, LineLost
from rayinfer.engine.plan_codec import Failed, Hello
from rayinfer.engine.rank_group import RankGroup
from rayinfer.engine.rendezvous import Rendezvous, open_rendezvous
from rayinfer.errors import EngineDead
from rayinfer.tensor_parallel import Place

SIZES = (2, 2)  # tensor ranks, stages


@pytest.fixture
def host():
    host = open_rendezvous(timeout_s=20.0)
    yield host
    host.close()


def in_threads(*actions):
    """What each of them returns, all at the same time."""
    results = [None] * len(actions)

    def run(index, action):
        results[index] = action()

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def test_ranks_meet_in_their_stages_and_agree_on_the_least(host):
    def be(rank):
        place = Place(rank, *SIZES)
        group = RankGroup.join(place, host.rendezvous) if rank else RankGroup.host(place, host)
        try:
            least = group.agree_least([10 + rank, 20 - rank])
            total = group.share.group.all_reduce(torch.tensor([float(10**rank)])).item()
            return group.share.place, least, total, group.everybody.size(), group.communication_s > 0
        finally:
            group.close()

    met = in_threads(*(lambda rank=rank: be(rank) for rank in range(4)))
    assert met == [(Place(rank, *SIZES), [10, 17], 11.0 if rank < 2 else 1100.0, 4, True) for rank in range(4)]


def test_nobody_comes_in_without_the_key_or_twice_or_from_another_group(host):
    meeting = host.rendezvous

    def knock(hello):
        line = ControlLine(socket.create_connection((meeting.host, meeting.port)))
        line.send(hello, 5.0)
        with pytest.raises(LineLost, match=r"hung up|closed"):
            line.receive(10.0)

    def knock_and_come():
        for hello in (
            Hello("another key", 1, 2),
            Hello(meeting.key, 2, 2),
            Hello(meeting.key, 0, 2),
            Hello(meeting.key, 1, 4),
            Failed("no hello at all"),
        ):
            knock(hello)
        return RankGroup.join(Place(1, 2, 1), meeting)

    groups = in_threads(lambda: RankGroup.host(Place(0, 2, 1), host), knock_and_come)
    assert [group.share.group.size for group in groups] == [2, 2]
    for group in groups:
        group.close()


def test_rank_0_stops_waiting_when_it_is_told_that_nobody_will_come(host):
    def check():
        raise EngineDead("rank 1 ended with code 9")

    with pytest.raises(EngineDead, match="rank 1 ended with code 9"):
        RankGroup.host(Place(0, 2, 1), host, check)


def test_rank_0_stops_waiting_when_its_door_is_closed(host):
    threading.Timer(0.3, host.close).start()
    with pytest.raises(EngineDead, match="door"):
        RankGroup.host(Place(0, 2, 1), host)


def test_rank_0_does_not_wait_for_ever(host, monkeypatch):
    monkeypatch.setattr(rendezvous, "START_TIMEOUT_S", 0.3)
    with pytest.raises(EngineDead, match=r"ranks \[1, 2, 3\] did not come within 0\.3 s"):
        RankGroup.host(Place(0, *SIZES), host)


def test_a_rank_that_finds_nobody_says_so():
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(EngineDead, match=f"rank 0 is not at 127.0.0.1:{port}"):
        RankGroup.join(Place(1, 2, 1), Rendezvous("127.0.0.1", port, "key"))


def test_who_fails_while_models_are_loaded_is_named_to_rank_0(host):
    def fail():
        group = RankGroup.join(Place(1, 2, 1), host.rendezvous)
        group.lines[0].send(Failed("ModelLoadError: no such file"), 5.0)
        group.close()

    def agree():
        group = RankGroup.host(Place(0, 2, 1), host)
        try:
            with pytest.raises(EngineDead, match="ModelLoadError: no such file"):
                group.agree_least([1])
        finally:
            group.close()

    in_threads(fail, agree)


def test_the_doors_are_open_to_this_machine_alone(host):
    assert host._door.getsockname()[0] == host._store_door.getsockname()[0] == "127.0.0.1"
