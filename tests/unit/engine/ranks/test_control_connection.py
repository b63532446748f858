"""A connection between two ranks: messages arrive in order, waits are bounded, and a close is noticed."""

import threading
import time

import pytest

from rayinfer import wire
from rayinfer.engine.ranks.control_connection import ConnectionLost
from rayinfer.engine.ranks.rank_messages import Done, Failed, Heartbeat
from support.fakes.control_connections import connection_pair


@pytest.fixture
def ends():
    one, other = connection_pair()
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_in_order_however_they_are_cut(ends):
    one, other = ends
    sent = [Heartbeat(), Failed("x" * 200_000), Done(), Heartbeat()]
    sender = threading.Thread(target=lambda: [one.send(message, 5.0) for message in sent])
    sender.start()
    assert [other.receive(5.0) for _ in sent] == sent
    sender.join()
    assert not other.has_unread


def test_two_ends_that_both_send_much_do_not_block_each_other(ends):
    much = Failed("x" * 20_000_000)
    received = []

    def send_and_receive(end):
        end.send(much, 30.0)
        received.append(end.receive(30.0))

    threads = [threading.Thread(target=send_and_receive, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == [much, much]


def test_a_peer_that_sends_nothing_or_reads_nothing_is_lost_after_the_timeout(ends):
    one, _ = ends
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match=r"sent nothing for 0\.2 s"):
        one.receive(0.2)
    with pytest.raises(ConnectionLost, match=r"read nothing for 0\.2 s"):
        one.send(Failed("x" * 30_000_000), 0.2)
    assert time.monotonic() - started < 4.0


def test_a_close_of_the_other_end_is_noticed(ends):
    one, other = ends
    other.send(Failed("why"), 1.0)
    other.close()
    assert one.receive(1.0) == Failed("why")  # sent before the close
    with pytest.raises(ConnectionLost, match="has closed"):
        one.receive(1.0)
    assert one.has_unread  # the close counts as unread
    with pytest.raises(ConnectionLost, match="closed"):
        one.send(Failed("x" * 30_000_000), 1.0)
    one.close()
    with pytest.raises(ConnectionLost, match="closed"):
        one.send(Heartbeat(), 1.0)
    with pytest.raises(ConnectionLost, match="closed"):
        one.receive(1.0)
    assert not one.has_unread


def test_a_message_that_is_too_long_or_unreadable_is_refused(ends):
    one, other = ends
    one.send(Failed("x" * 5000), 1.0)
    with pytest.raises(wire.BadMessage, match="at most 4096"):
        other.receive(1.0, max_bytes=4096)
    other.send_frame(wire.encode(Heartbeat())[:-1] + b"\xc1", 1.0)
    with pytest.raises(wire.BadMessage, match="unreadable"):
        one.receive(1.0)
