import signal
import subprocess
import sys

from rayinfer.liveness import TickWatch, is_stopped
from support.services.polling import wait_until


def test_a_peer_is_silent_for_as_many_intervals_as_were_missed_in_a_row():
    watch = TickWatch(0.25)
    for _ in range(4):
        watch.tick()
    assert watch.silent_s == 1.0
    assert (watch.has_missed(1.0), watch.has_missed(1.25)) == (True, False)
    watch.reset()
    assert (watch.silent_s, watch.has_missed(0.0)) == (0.0, False)


def test_a_process_is_stopped_from_one_signal_to_another():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_stopped(child.pid)
    for sent, stops in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        child.send_signal(sent)
        wait_until(lambda stops=stops: is_stopped(child.pid) is stops)
    child.communicate()
    assert not is_stopped(child.pid)
