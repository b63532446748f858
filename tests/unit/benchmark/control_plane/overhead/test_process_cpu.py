import os
import time

import pytest

from rayinfer.benchmark.control_plane.overhead.process_cpu import (
    CLOCK_TICK_S,
    cpu_share,
    parse_cpu_seconds,
    read_cpu_seconds,
    us_per_token,
)


def test_user_and_kernel_time_are_found_behind_any_name():
    before = "7 (a ) b (c) S 1 7 7 0 -1 4194560 100 0 0 0"
    assert parse_cpu_seconds(f"{before} 30 12 5 5 20 0 1 0") == pytest.approx(42 * CLOCK_TICK_S)


def test_a_process_that_works_is_seen_working_and_one_that_is_gone_is_left_out():
    nobody = 2**22 + 1  # above any process id
    before = read_cpu_seconds([os.getpid(), nobody])
    assert set(before) == {os.getpid()}
    until = time.process_time() + 5 * CLOCK_TICK_S
    while time.process_time() < until:
        pass
    assert read_cpu_seconds([os.getpid()])[os.getpid()] >= before[os.getpid()] + 3 * CLOCK_TICK_S


def test_only_processes_that_were_there_all_the_time_count():
    assert cpu_share({1: 2.0, 2: 1.0}, {1: 5.0, 3: 9.0}, seconds=6.0) == {1: 0.5}


def test_what_processes_take_when_idle_is_not_the_tokens_fault():
    loaded, idle = {1: 0.10, 2: 0.05, 3: 0.9}, {1: 0.02}
    assert us_per_token([1, 2], loaded, idle, tok_s=1300.0) == 100.0
