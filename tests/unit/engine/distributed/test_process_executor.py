"""Engines over processes: the outputs of one rank, and no process left, however they end."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.distributed.process_executor import RankProcesses
from rayinfer.engine.ranks.rank_coordinates import coordinates_of
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rendezvous import RendezvousHost
from rayinfer.errors import ConfigError, EngineDead
from rayinfer.protocols import GenerationRequest
from support.golden.invariance_comparison import differences
from support.services.polling import wait_until
from support.tiny_models.tiny_checkpoints import make_tiny_llama

PROMPTS = [[9, 8, 7, 200, 6, 5, 31], [4] * 40, [1, 2, 3], list(range(5, 70))]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=3, prompt_logprobs=2)
SETTINGS = {"dtype": "float32", "num_kv_blocks": 64, "num_threads": 1}
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
SOON_S = 60.0  # on a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Three layers and an odd vocabulary: neither stages nor ranks get equal parts.
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), layers=3, vocab_size=385, tie=False)


def answers_of(llm):
    return {output.request_id: output for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)}


@pytest.fixture(scope="module")
def expected(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        return answers_of(llm)


def listening():
    return {connection.laddr for connection in psutil.Process().net_connections() if connection.status == "LISTEN"}


def own_children():
    return psutil.Process().children()


def wait_for_exits(process_ids):
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in process_ids))


@pytest.mark.parametrize(
    ("tensor", "pipeline"),
    [(2, 2), *(pytest.param(*sizes, marks=pytest.mark.every_case) for sizes in ((2, 1), (1, 2)))],
)
def test_outputs_are_those_of_one_rank(tensor, pipeline, folder, expected):
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    ports, others = listening(), set(own_children())
    with LLM(str(folder), **SETTINGS, **sizes) as llm:
        ranks = [child.pid for child in set(own_children()) - others]
        assert len(ranks) == tensor * pipeline - 1
        assert "\n".join(differences(expected, answers_of(llm))) == ""
        assert llm.stats.kv_blocks_total == 64
        llm.sleep(2)  # every rank reads its part of the weights again
        llm.wake()
        again = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in again] == [
            output.outputs[0].token_ids for output in expected.values()
        ]
    wait_for_exits(ranks)
    assert listening() <= ports  # though `llm` is still there


@pytest.fixture
def endless_engine(folder):
    """An engine over two processes, in the middle of an answer, and the process of rank 1."""
    config = engine_config(model=str(folder), tensor_parallel_size=2, **SETTINGS)
    before = own_children()
    engine = build_engine(config, folder, group_timeout_s=2.0)
    (rank,) = (child for child in own_children() if child not in before)
    engine.add_request(GenerationRequest(request_id="a", prompt_token_ids=[5], sampling_params=ENDLESS))
    engine.step()
    yield engine, rank.pid
    engine.exit()
    wait_for_exits([rank.pid])


@pytest.mark.parametrize(("sent", "is_idle"), [(signal.SIGKILL, True), (signal.SIGSTOP, False)])
def test_a_rank_that_dies_or_hangs_ends_the_engine_and_its_processes(sent, is_idle, endless_engine):
    engine, rank = endless_engine
    os.kill(rank, sent)
    with pytest.raises(EngineDead, match="rank"):
        wait_for_the_end(engine, is_idle=is_idle)
    wait_for_exits([rank])
    assert engine.stats.state == "dead"
    with pytest.raises(EngineDead, match="rank"):
        engine.step()


@pytest.mark.parametrize("killed", [1, pytest.param(2, marks=pytest.mark.every_case)])
def test_a_rank_killed_in_the_middle_of_steps_is_named(killed, folder):
    config = engine_config(model=str(folder), pipeline_parallel_size=3, **SETTINGS)
    before = own_children()
    engine = build_engine(config, folder)
    ranks = [child.pid for child in own_children() if child not in before]
    for name in ("a", "b"):  # so that two steps are in flight
        engine.add_request(GenerationRequest(request_id=name, prompt_token_ids=[5], sampling_params=ENDLESS))
    for _ in range(4):
        engine.step()
    os.kill(ranks[killed - 1], signal.SIGKILL)
    with pytest.raises(EngineDead, match=rf"rank {killed} is lost: .*closed"):
        wait_for_the_end(engine, is_idle=False)
    engine.exit()
    wait_for_exits(ranks)


# Replaces a method in rank processes: every Python that is started finds this on PYTHONPATH.
IN_PLACE = """
import importlib.util, os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "rayinfer.engine.{module}":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            def in_place(*_):
                {what}
            module.{method} = in_place
        spec.loader.exec_module = exec_module
        return spec

if "process_executor" in " ".join(sys.orig_argv):
    sys.meta_path.insert(0, Finder())
"""
FREEZES = "os.kill(os.getpid(), signal.SIGSTOP)"
DIES = "os.kill(os.getpid(), signal.SIGKILL)"
FAILS = "raise MemoryError('no room for the static shapes')"


@pytest.fixture
def rank_does(tmp_path, monkeypatch):
    """Has the rank processes that are started from now on do something in place of a method."""

    def do(what, module, method):
        (tmp_path / "sitecustomize.py").write_text(IN_PLACE.format(what=what, module=module, method=method))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    return do


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (FREEZES, "rank 1 is lost: it has sent no heartbeat"),
        (FAILS, "rank 1 failed: MemoryError: no room for the static shapes"),
    ],
)
def test_a_rank_that_hangs_or_fails_during_warm_up_is_named(what, reason, folder, rank_does):
    rank_does(what, "worker.static_runner", "StaticRunner.warm_up")
    shape = {"engine": "static", "max_model_len": 64, "max_num_seqs": 2, "tensor_parallel_size": 2}
    config = engine_config(model=str(folder), dtype="float32", num_threads=1, **shape)
    before = own_children()
    with pytest.raises(EngineDead, match=reason):
        build_engine(config, folder, group_timeout_s=2.0)
    assert own_children() == before


# gloo stores its address, then waits for those of the others: rank 0 has what it waits for, and connects.
CAUGHT_START = """
import sys
from pathlib import Path
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.errors import EngineDead
config = engine_config(model=sys.argv[1], tensor_parallel_size=2, num_kv_blocks=64, num_threads=1)
try:
    build_engine(config, Path(sys.argv[1]))
except EngineDead as error:
    print(error, flush=True)
"""


def test_a_process_survives_a_rank_killed_between_storing_its_address_and_connecting(folder, rank_does):
    rank_does(DIES, "ranks.rank_store", "RankStore.wait")
    ended = subprocess.run(
        [sys.executable, "-c", CAUGHT_START, folder], stdout=subprocess.PIPE, text=True, timeout=SOON_S, check=False
    )
    assert "rank 1 is lost: it has closed the connection" in ended.stdout
    assert ended.returncode == 0  # though a thread of gloo still waits for that rank


def test_a_rank_stopped_before_it_connects_is_named(folder):
    config = engine_config(model=str(folder), tensor_parallel_size=2, **SETTINGS)
    host = RendezvousHost(timeout_s=1.0)
    processes = RankProcesses(config, folder, host.rendezvous)
    try:
        os.kill(processes.process_ids[0], signal.SIGSTOP)
        with pytest.raises(EngineDead, match="rank 1 is lost: its process was stopped"):
            RankGroup.host(coordinates_of(config, 0), host, processes)
    finally:
        processes.end(0.0)
        host.close()


def wait_for_the_end(engine, *, is_idle):
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        if is_idle:
            engine.check_alive()
            time.sleep(0.05)
        else:
            engine.step()


# No main guard, as in a notebook: ranks must not run their caller's script.
SCRIPT = """
import psutil, sys, time
from rayinfer import LLM, SamplingParams
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", num_kv_blocks=64, num_threads=1)
llm.generate([[5, 6]], SamplingParams(max_tokens=2), use_tqdm=False)
print(*(child.pid for child in psutil.Process().children()), flush=True)
if sys.argv[2] == "wait":
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["wait", pytest.param("return", marks=pytest.mark.every_case)])
def test_no_rank_outlives_its_parent_process(end, folder):
    with subprocess.Popen([sys.executable, "-c", SCRIPT, folder, end], stdout=subprocess.PIPE, text=True) as script:
        ranks = [int(word) for word in script.stdout.readline().split()]
        if end == "wait":
            script.kill()
    assert len(ranks) == 1
    wait_for_exits(ranks)


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 8}, {"pipeline_parallel_size": 4}], ids=str)
def test_more_ranks_than_the_model_has_parts_are_refused_before_any_is_started(sizes, folder, rank_does):
    rank_does("return", "distributed.rank_worker", "run_rank")  # which would end the engine
    with pytest.raises(ConfigError, match="ranks are too many for"):
        LLM(str(folder), **SETTINGS, **sizes)
