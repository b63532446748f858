import os
import subprocess
import sys

from rayinfer_deployments.cluster.process_tree import children, descendants, read_process
from support.services.polling import wait_until

FAMILY = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""

# A grandchild that ignores SIGTERM in a session of its own loses its parent, and is ended all the same.
CLEANER = """
import os, signal, subprocess, sys, time
from rayinfer_deployments.cluster.process_tree import adopt_orphans, descendants, end_descendants
adopt_orphans()
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
parent = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True,"
    " stdout=subprocess.PIPE); child.stdout.readline(); print(child.pid)"
)
pid = int(subprocess.run([sys.executable, "-c", parent, stubborn], stdout=subprocess.PIPE, check=True).stdout)
assert [process.pid for process in descendants(os.getpid())] == [pid], "the orphan has slipped away"
end_descendants(grace_s=0.3)
assert not descendants(os.getpid())
try:
    os.kill(pid, 0)
except ProcessLookupError:
    print("gone")
"""


def test_a_process_is_known_by_its_pid_and_its_start():
    own = read_process(os.getpid())
    assert own.parent == os.getppid()
    assert own.is_alive
    assert sys.executable.rpartition("/")[2].split(".")[0][:6] in own.title


def test_a_process_that_has_ended_is_not_alive_even_before_it_is_reaped():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = read_process(child.pid)
    assert process.is_alive
    child.stdin.close()
    wait_until(lambda: not process.is_alive)
    child.wait()
    assert read_process(child.pid) is None


def test_descendants_are_found_down_to_the_last_generation():
    child = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    try:
        grandchild = int(child.stdout.readline())
        assert [process.pid for process in descendants(child.pid)] == [grandchild]
        assert [process.pid for process in children(child.pid)] == [grandchild]
        assert grandchild not in [process.pid for process in children(os.getpid())]
        ours = {process.pid: process for process in descendants(os.getpid())}
        assert ours[grandchild].parent == child.pid
        os.kill(grandchild, 9)
    finally:
        child.kill()
        child.wait()


def test_no_descendant_outlives_the_end():
    answer = subprocess.run([sys.executable, "-c", CLEANER], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "gone", answer.stderr
