import signal
import subprocess
import sys
import time

from rayinfer.engine.distributed.process_state import is_stopped


def test_a_process_is_stopped_from_one_signal_to_another():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_stopped(child.pid)
    for sent, stops in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        child.send_signal(sent)
        deadline = time.monotonic() + 10
        while is_stopped(child.pid) is not stops:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    child.communicate()
    assert not is_stopped(child.pid)
