"""An engine on a GPU: recorded steps, steps planned ahead and plain ones give the same tokens, also after sleep."""

import random

import pytest
import torch
import triton

from rayinfer.engine.build import build_engine
from rayinfer.layers.matrix import Matrix
from rayinfer.protocols import GenerationRequest, Sleep, Wake
from rayinfer.sampling_params import SamplingParams
from support.golden.engine_answers import answers_of, assert_alike, config_of
from support.tiny_models.tiny_architectures import DECODERS
from support.tiny_models.tiny_checkpoints import make_tiny_llama

WAYS = [{}, {"sleeps": True}, {"async_scheduling": False}, {"enforce_eager": True}]


@pytest.mark.gpu
@pytest.mark.parametrize("name", DECODERS)
def test_recorded_overlapping_and_plain_steps_answer_alike(name, tmp_path):
    folder = DECODERS[name](tmp_path)
    plain = answers_of(folder, enforce_eager=True, async_scheduling=False)
    for way in WAYS:
        assert_alike(answers_of(folder, **way), plain)


def numbers_of(engine):
    """The bytes of every matrix, on the host."""
    matrices = [module for module in engine.executor.runner.decoder.modules() if isinstance(module, Matrix)]
    operands = [matrix.weight if matrix.packed is None else matrix.packed.panels for matrix in matrices]
    return [operand.detach().cpu().view(torch.uint8) for operand in operands]


@pytest.mark.gpu
@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_weights_leave_the_gpu_for_a_sleep_and_come_back_as_they_were(quantization, tmp_path):
    folder = make_tiny_llama(tmp_path, hidden=1024, heads=8, layers=4, intermediate_size=4096)
    settings = {"dtype": "bfloat16", "quantization": quantization, "allow_inaccurate_quantization": True}
    engine = build_engine(config_of(folder, **settings), folder)
    try:
        before, awake = numbers_of(engine), torch.cuda.memory_allocated()
        engine.control(Sleep(1))
        assert awake - torch.cuda.memory_allocated() > sum(len(each.flatten()) for each in before)
        engine.control(Wake())
        assert all(map(torch.equal, numbers_of(engine), before))
        assert torch.cuda.memory_allocated() == pytest.approx(awake, rel=0.1)
    finally:
        engine.exit()


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"kv_cache_dtype": "fp8"}], ids=str)
def test_no_kernel_is_compiled_while_requests_are_served(settings, tmp_path, monkeypatch):
    folder = make_tiny_llama(tmp_path, hidden=256, heads=4, kv_heads=2, layers=2, vocab_size=5000)
    sizes = {"max_model_len": 256, "max_num_seqs": 24, "max_num_batched_tokens": 300, "num_kv_blocks": 400}
    common = {"dtype": "bfloat16", "allow_inaccurate_quantization": True}
    engine = build_engine(config_of(folder, **(common | sizes | settings)), folder)
    compiled = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda *_args, **reported: compiled.append(reported["repr"])
    )
    chance = random.Random(1)
    try:
        for number in range(120):
            prompt = [chance.randrange(5000) for _ in range(chance.choice((1, 2, 5, 17, 60, 200)))]
            truncation = chance.choice(({}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.1}))
            params = SamplingParams(
                temperature=chance.choice((0.0, 0.8)), max_tokens=chance.randrange(1, 40), ignore_eos=True, **truncation
            )
            request = GenerationRequest(request_id=str(number), prompt_token_ids=prompt, sampling_params=params)
            engine.add_request(request)
            if number % 30 > 20:
                engine.step()
        while engine.has_unfinished_requests:
            engine.step()
    finally:
        engine.exit()
    assert not compiled
