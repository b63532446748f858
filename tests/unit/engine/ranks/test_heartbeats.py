"""Heartbeats of ranks: a silent rank is lost, sooner if its process is known to be stopped."""

import socket
import threading

import pytest

from rayinfer.engine.ranks import heartbeats as rank_beats
from rayinfer.engine.ranks.control_connection import ControlLine
from rayinfer.engine.ranks.heartbeats import RankBeats

TIMEOUT_S = 0.3
SOON_S = 10.0


class Silence:
    """A rank that never beats, and what is said of it."""

    def __init__(self, is_stopped=None):
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.other = ControlLine(socket.create_connection(door.getsockname()))
            self.line = ControlLine(door.accept()[0])
        self.is_told = threading.Event()
        self.beats = RankBeats({3: self.line}, TIMEOUT_S, self.note, is_stopped)

    def note(self, rank, silent_s):
        self.told = (rank, silent_s)
        self.is_told.set()


@pytest.fixture
def silence():
    made = []

    def make(*arguments):
        made.append(Silence(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.beats.close()
        each.other.close()


def test_who_is_silent_is_lost_after_the_timeout(silence):
    silent = silence()
    assert silent.is_told.wait(SOON_S)
    assert silent.told == (3, pytest.approx(TIMEOUT_S))


def test_who_is_silent_and_not_stopped_is_only_lost_after_the_long_time(silence, monkeypatch):
    monkeypatch.setattr(rank_beats, "GROUP_TIMEOUT_S", 5 * TIMEOUT_S)
    silent = silence(lambda rank: False)
    assert silent.is_told.wait(SOON_S)
    assert silent.told == (3, pytest.approx(5 * TIMEOUT_S))


def test_who_is_silent_and_stopped_is_lost_after_the_timeout(silence):
    silent = silence({3}.__contains__)
    assert silent.is_told.wait(SOON_S)
    assert silent.told == (3, pytest.approx(TIMEOUT_S))
