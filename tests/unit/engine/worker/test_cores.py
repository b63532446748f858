"""Cores that an engine keeps its threads on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rayinfer.engine.worker.cores import Cores, fill_machine, usable_cores
from support.kernels.thread_teams import affinities_of_the_team, in_a_thread

NUM_CORES = len(usable_cores())
TAKES_ALL_AND_WAITS = """
import sys
from pathlib import Path
from rayinfer.engine.worker.cores import Cores
held = [Cores(1, Path(sys.argv[1])) for _ in range(int(sys.argv[2]))]
print(sum(len(list(each)) for each in held), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def one_thread_per_core():
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_CORES)
    yield
    torch.set_num_threads(before)


def test_threads_are_worth_pinning_where_they_leave_no_core_free():
    assert fill_machine(NUM_CORES) == (NUM_CORES > 1)
    assert fill_machine(2, num_engines=NUM_CORES)
    assert not fill_machine(1)  # it waits for no other
    assert not fill_machine(1, num_engines=2 * NUM_CORES)


def test_engines_of_one_machine_choose_different_cores(tmp_path):
    cores = [Cores(1, tmp_path) for _ in range(NUM_CORES)]
    assert sorted(core for each in cores for core in each) == usable_cores()
    assert not list(Cores(1, tmp_path))  # none is left: its thread is not pinned
    cores[0].release()
    assert list(Cores(1, tmp_path)) == usable_cores()[:1]


def test_an_engine_that_finds_too_few_cores_takes_none(tmp_path):
    first = Cores(1, tmp_path)
    assert not list(Cores(NUM_CORES + 1, tmp_path))
    assert len(list(Cores(NUM_CORES - 1, tmp_path))) == NUM_CORES - 1
    assert len(list(first)) == 1


def test_cores_of_a_killed_process_are_free_again(tmp_path):
    command = [sys.executable, "-c", TAKES_ALL_AND_WAITS, str(tmp_path), str(NUM_CORES)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == str(NUM_CORES)
        assert not list(Cores(1, tmp_path))
        other.kill()
    assert list(Cores(1, tmp_path)) == usable_cores()[:1]


def test_without_a_place_for_locks_nothing_is_pinned(tmp_path):
    (tmp_path / "file").write_text("")
    assert not list(Cores(1, tmp_path / "file" / "folder"))


@pytest.mark.usefixtures("one_thread_per_core", "compiled_kernels")
def test_a_team_is_pinned_while_it_works_and_its_caller_no_longer(tmp_path: Path):
    usable = set(usable_cores())

    def work() -> tuple[list[set[int]], set[int], list[set[int]]]:
        cores = Cores(NUM_CORES, tmp_path)
        with cores.hold():
            pinned = affinities_of_the_team(NUM_CORES)
        after = os.sched_getaffinity(0)
        cores.release()
        return pinned, after, affinities_of_the_team(NUM_CORES)

    pinned, after, freed = in_a_thread(work)
    assert pinned == [{core} for core in usable_cores()]
    assert after == usable
    assert freed == [usable] * NUM_CORES


@pytest.mark.usefixtures("one_thread_per_core", "compiled_kernels")
def test_a_team_of_another_size_is_left_alone(tmp_path: Path):
    cores = Cores(NUM_CORES, tmp_path)
    torch.set_num_threads(NUM_CORES + 1)

    def work() -> set[int]:
        with cores.hold():
            return os.sched_getaffinity(0)

    assert in_a_thread(work) == set(usable_cores())


@pytest.mark.usefixtures("one_thread_per_core", "compiled_kernels")
def test_each_thread_that_comes_later_has_its_team_pinned_too(tmp_path: Path):
    cores = Cores(NUM_CORES, tmp_path)

    def work() -> list[set[int]]:
        with cores.hold():
            return affinities_of_the_team(NUM_CORES)

    pinned = [{core} for core in usable_cores()]
    assert [in_a_thread(work) for _ in range(3)] == [pinned] * 3
