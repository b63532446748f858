"""A line between two ranks: all is read, nobody waits for ever, and an end is noticed."""

import socket
import threading
import time

import pytest

from rayinfer.engine.ranks.control_connection import ControlLine, LineLost, framed
from rayinfer.engine.ranks.plan_codec import BadMessage, Beat, Computed, Done, Failed


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = ControlLine(socket.create_connection(door.getsockname()))
        other = ControlLine(door.accept()[0])
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_in_their_order_however_they_are_cut(ends):
    one, other = ends
    said = [Beat(), Failed("x" * 200_000), Done(), Beat()]
    sender = threading.Thread(target=lambda: [one.send(message, 5.0) for message in said])
    sender.start()
    assert [other.receive(5.0) for _ in said] == said
    sender.join()
    assert not other.has_unread


def test_two_ends_with_much_to_say_do_not_wait_for_each_other(ends):
    much = Computed(0.0, token_ids=bytes(20_000_000))
    answers = []

    def say_and_hear(end):
        end.send(much, 30.0)
        answers.append(end.receive(30.0))

    threads = [threading.Thread(target=say_and_hear, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [much, much]


def test_who_says_nothing_and_who_reads_nothing_is_given_up(ends):
    one, _ = ends
    started = time.monotonic()
    with pytest.raises(LineLost, match=r"said nothing for 0\.2 s"):
        one.receive(0.2)
    with pytest.raises(LineLost, match=r"read nothing for 0\.2 s"):
        one.send(Computed(0.0, token_ids=bytes(30_000_000)), 0.2)
    assert time.monotonic() - started < 4.0


def test_the_other_ends_end_is_noticed(ends):
    one, other = ends
    other.send(Failed("why"), 1.0)
    other.close()
    assert one.receive(1.0) == Failed("why")  # what it said before
    with pytest.raises(LineLost, match="hung up"):
        one.receive(1.0)
    assert one.has_unread  # the end itself is news
    with pytest.raises(LineLost, match=r"hung up|closed"):
        one.send(Failed("x" * 30_000_000), 1.0)
    one.close()
    with pytest.raises(LineLost, match="closed"):
        one.send(Beat(), 1.0)
    with pytest.raises(LineLost, match="closed"):
        one.receive(1.0)
    assert not one.has_unread


def test_a_message_that_is_too_long_or_unreadable_is_refused(ends):
    one, other = ends
    one.send(Failed("x" * 5000), 1.0)
    with pytest.raises(BadMessage, match="at most 4096"):
        other.receive(1.0, max_bytes=4096)
    other.send_bytes(framed(Beat())[:-1] + b"\xc1", 1.0)
    with pytest.raises(BadMessage, match="unreadable"):
        one.receive(1.0)
