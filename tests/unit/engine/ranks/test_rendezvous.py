"""Authentication at the rendezvous: ranks with the key, each once, however many other connections come first."""

import socket
import threading
import time

import pytest

from rayinfer.engine.ranks import rendezvous
from rayinfer.engine.ranks.control_connection import ControlLine, LineLost, framed
from rayinfer.engine.ranks.plan_codec import Failed
from rayinfer.engine.ranks.rendezvous import (
    MAX_STRANGERS,
    Rendezvous,
    close_all,
    introduce,
    join_rendezvous,
    open_rendezvous,
)
from rayinfer.engine.ranks.rendezvous_messages import Challenge, Hello
from rayinfer.errors import EngineDead
from rayinfer.tensor_parallel import RankCoordinates

PLACE = RankCoordinates(1, 2, 1)
SOON_S = 10.0


@pytest.fixture
def host():
    host = open_rendezvous()
    yield host
    host.close()


@pytest.fixture
def accepting(host):
    """A thread in which rank 0 waits for rank 1, and what it gets."""
    met = []
    thread = threading.Thread(target=lambda: met.extend(host.accept(2, lambda: None)), daemon=True)
    thread.start()
    yield thread, met
    thread.join(SOON_S)
    assert not thread.is_alive()
    for lines in met:
        close_all([lines.commands, lines.beats, lines.store])


def connect(host):
    return ControlLine(socket.create_connection((host.rendezvous.host, host.rendezvous.port), SOON_S))


def assert_sent_away(line):
    with pytest.raises(LineLost, match=r"hung up|closed"):
        line.receive(SOON_S)
    line.close()


def leave(lines):
    close_all([lines.commands, lines.beats, lines.store])


def answer_of(line, place, meeting, purpose="commands"):
    introduce(line, place, meeting, purpose, b"nonce")


def test_strangers_who_say_nothing_keep_no_rank_waiting(host, accepting):
    strangers = [connect(host) for _ in range(100)]
    started = time.monotonic()
    lines = join_rendezvous(PLACE, host.rendezvous)
    assert time.monotonic() - started < 4.0  # one after the other, five seconds each, they took 500
    leave(lines)
    close_all(strangers)


def test_no_more_strangers_are_kept_than_the_limit(host, accepting, monkeypatch):
    monkeypatch.setattr(rendezvous, "HELLO_TIMEOUT_S", 60.0)  # it is not this that ends them
    strangers = [connect(host) for _ in range(2 * MAX_STRANGERS)]
    for line in strangers[:MAX_STRANGERS]:  # the oldest have given way
        assert isinstance(line.receive(SOON_S), Challenge)
        assert_sent_away(line)
    assert len(host._strangers) <= MAX_STRANGERS
    leave(join_rendezvous(PLACE, host.rendezvous))
    close_all(strangers)


def test_who_says_half_a_word_is_not_waited_for(host, accepting):
    line = connect(host)
    line._socket.sendall(framed(Failed("half of this"))[:6])
    started = time.monotonic()
    leave(join_rendezvous(PLACE, host.rendezvous))
    assert time.monotonic() - started < 4.0
    line.close()


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (PLACE, "another key"),
        (RankCoordinates(2, 3, 1), None),
        (RankCoordinates(0, 2, 1), None),
        (RankCoordinates(1, 4, 1), None),
    ],
)
def test_nobody_comes_in_without_the_key_or_as_another_rank(place, key, host, accepting):
    meeting = host.rendezvous
    line = connect(host)
    answer_of(line, place, Rendezvous(meeting.host, meeting.port, key or meeting.key))
    assert_sent_away(line)
    leave(join_rendezvous(PLACE, meeting))


def test_who_says_something_else_is_sent_away(host, accepting):
    line = connect(host)
    line.send(Failed("no hello at all"), SOON_S)
    assert isinstance(line.receive(SOON_S), Challenge)
    assert_sent_away(line)
    leave(join_rendezvous(PLACE, host.rendezvous))


def test_no_rank_comes_in_twice(host, accepting):
    first, second, *others = (connect(host) for _ in range(4))
    answer_of(first, PLACE, host.rendezvous, "beats")
    answer_of(second, PLACE, host.rendezvous, "beats")
    assert_sent_away(second)
    for line, purpose in zip(others, ("commands", "store"), strict=True):
        answer_of(line, PLACE, host.rendezvous, purpose)
    accepting[0].join(SOON_S)
    close_all([first, *others])


class Eavesdropper:
    """Proxy between a rank and rank 0 that records the data of both."""

    def __init__(self, host):
        self.heard = bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        meeting = host.rendezvous
        self.rendezvous = Rendezvous("127.0.0.1", self.listener.getsockname()[1], meeting.key)
        self.target = (meeting.host, meeting.port)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self.target)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source, target):
        try:
            while data := source.recv(4096):
                self.heard += data
                target.sendall(data)
        except OSError:
            pass
        target.close()


def test_the_key_is_never_sent(host, accepting):
    eavesdropper = Eavesdropper(host)
    lines = join_rendezvous(PLACE, eavesdropper.rendezvous)
    assert b"hello" in eavesdropper.heard
    assert host.rendezvous.key.encode() not in eavesdropper.heard
    assert bytes.fromhex(host.rendezvous.key) not in eavesdropper.heard
    assert host.rendezvous.key not in repr(host.rendezvous)
    leave(lines)
    eavesdropper.listener.close()


def test_an_answer_that_was_overheard_opens_nothing(host, accepting):
    overheard, replaying = connect(host), connect(host)
    answers = []
    overheard.send = lambda message, timeout_s: answers.append(message)
    answer_of(overheard, PLACE, host.rendezvous)
    assert isinstance(replaying.receive(SOON_S), Challenge)
    replaying.send(answers[0], SOON_S)
    assert_sent_away(replaying)
    overheard.close()
    leave(join_rendezvous(PLACE, host.rendezvous))


def test_a_rank_obeys_nobody_who_does_not_know_the_key():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose_as_rank_0():
            lines = []
            for _ in range(3):
                lines.append(ControlLine(listener.accept()[0]))
                lines[-1].send(Challenge(b"nonce"), SOON_S)
                assert isinstance(lines[-1].receive(SOON_S), Hello)
            lines[0].send(Challenge(b"welcome"), SOON_S)

        threading.Thread(target=pose_as_rank_0, daemon=True).start()
        with pytest.raises(EngineDead, match="does not know the engine's key"):
            join_rendezvous(PLACE, Rendezvous(*listener.getsockname(), "key"))
