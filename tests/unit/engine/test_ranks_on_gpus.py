"""Engines over several GPUs, which talk over NCCL: what one GPU answers, and no process left when a rank is lost."""

import signal
import subprocess
import sys

import psutil
import pytest

from rayinfer.engine.build import build_engine
from support.golden.engine_answers import answers_of, assert_alike
from support.golden.invariance_comparison import differences
from support.golden.invariance_requests import make_mixed_model, mixed_requests
from support.golden.invariance_runs import ROOMY, open_llm, run, run_alone
from support.tiny_models.tiny_architectures import DECODERS, ENCODER_DECODERS

SETTINGS = {"dtype": "float32", "num_kv_blocks": 64}
SOON_S = 90.0
SIZES = [
    pytest.param(2, 1, marks=pytest.mark.gpu(2)),
    pytest.param(1, 2, marks=pytest.mark.gpu(2)),
    pytest.param(2, 2, marks=pytest.mark.gpu(4)),
]


@pytest.mark.parametrize(("tensor", "pipeline"), SIZES)
@pytest.mark.parametrize("name", DECODERS | ENCODER_DECODERS)
def test_gpus_answer_like_one(name, tensor, pipeline, tmp_path):
    folder = (DECODERS | ENCODER_DECODERS)[name](tmp_path)
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    got = answers_of(folder, build=build_engine, **sizes)
    assert_alike(got, answers_of(folder))


@pytest.mark.parametrize(("tensor", "pipeline"), SIZES)
def test_the_forty_mixed_requests_are_answered_like_each_of_them_alone(tensor, pipeline, tmp_path):
    folder, requests = make_mixed_model(tmp_path), mixed_requests()
    with open_llm(folder, enable_prefix_caching=False, **ROOMY) as llm:
        alone = run_alone(llm, requests)
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    with open_llm(folder, **ROOMY, **sizes) as llm:
        assert "\n".join(differences(alone.outputs, run(llm, requests).outputs)) == ""


@pytest.mark.gpu(2)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_hangs_ends_the_engine_and_its_process(sent, tmp_path):
    lose_a_rank(sent, next(iter(DECODERS.values()))(tmp_path))


# In a process of its own, which torch's watchdog may take down as soon as it sees that NCCL was aborted.
ENDLESS = """
import pathlib, psutil, sys
from rayinfer import SamplingParams
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.errors import EngineDead
from rayinfer.protocols import GenerationRequest

if __name__ == "__main__":
    config = engine_config(model=sys.argv[1], tensor_parallel_size=2, dtype="float32", num_kv_blocks=64)
    engine = build_engine(config, pathlib.Path(sys.argv[1]), group_timeout_s=5.0)
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    engine.add_request(GenerationRequest(request_id="a", prompt_token_ids=[5], sampling_params=params))
    engine.step()
    print(*(child.pid for child in psutil.Process().children()), flush=True)
    try:
        while True:
            engine.step()
    except EngineDead as error:
        print(error, flush=True)
    engine.exit()
"""


def lose_a_rank(sent, folder):
    with subprocess.Popen([sys.executable, "-c", ENDLESS, folder], stdout=subprocess.PIPE, text=True) as engine:
        rank = psutil.Process(int(engine.stdout.readline()))
        rank.send_signal(sent)
        try:
            said, _ = engine.communicate(timeout=SOON_S)
        finally:
            engine.kill()
    assert "rank" in said or engine.returncode == -signal.SIGABRT
    rank.wait(SOON_S)
