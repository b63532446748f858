import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayinfer_deployments.cluster.process_priority import (
    LOWEST,
    deprioritize_background_processes,
    deprioritize_control_plane,
)

WAITING = "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print('up', flush=True)"


@pytest.fixture
def start():
    """Start processes of two threads that carry these words in their command lines."""
    processes = []

    def start_process(title):
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING, title], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        process.stdout.readline()
        return process.pid

    yield start_process
    for process in processes:
        process.communicate("")


def priorities(pid):
    return {os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir()}


def test_only_the_control_plane_is_deprioritized(start):
    helpers = [
        start("ray::ServeController.listen"),
        start("ray::ServeReplica:mine:engine-0-m"),
        start("ray::DashboardAgent"),
    ]
    others = [
        start("ray::ServeReplica:mine:router"),
        start("ray::EngineActor"),
        start("ray::ServeReplica:theirs:engine-0"),
    ]
    before = priorities(others[0])
    deprioritize_control_plane(os.getpid(), "mine")
    assert [priorities(pid) for pid in helpers] == [{LOWEST}] * 3
    assert [priorities(pid) for pid in others] == [before] * 3
    deprioritize_control_plane(os.getpid(), "mine")  # again: nothing more to do


def test_background_processes_are_deprioritized_during_the_start(start):
    monitor, controller = start("/site-packages/ray/autoscaler/_private/monitor.py"), start("ray::ServeController")
    before = priorities(controller)
    deprioritize_background_processes(os.getpid())
    assert priorities(monitor) == {LOWEST}
    assert priorities(controller) == before
