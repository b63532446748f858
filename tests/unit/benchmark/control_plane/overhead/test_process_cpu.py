import os
import time

from rayinfer.benchmark.control_plane.overhead.process_cpu import cpu_share, read_cpu_seconds, us_per_token


def test_a_busy_process_has_its_time_and_an_ended_one_is_left_out():
    unused = 2**22 + 1  # above any process id
    before = read_cpu_seconds([os.getpid(), unused])
    assert set(before) == {os.getpid()}
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert read_cpu_seconds([os.getpid()])[os.getpid()] >= before[os.getpid()] + 0.03


def test_only_processes_that_live_all_the_time_count():
    assert cpu_share({1: 2.0, 2: 1.0}, {1: 5.0, 3: 9.0}, seconds=6.0) == {1: 0.5}


def test_idle_time_is_not_counted_for_tokens():
    loaded, idle = {1: 0.10, 2: 0.05, 3: 0.9}, {1: 0.02}
    assert us_per_token([1, 2], loaded, idle, tok_s=1300.0) == 100.0
