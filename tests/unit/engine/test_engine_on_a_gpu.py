"""An engine on a GPU: recorded steps, steps planned ahead and plain ones give the same tokens, also after sleep."""

import pytest
import torch

from engine_answers import answers_of, assert_alike, config_of
from rayinfer.engine.one_rank_assembly import build_one_rank_engine
from rayinfer.layers.matrix import Matrix
from tiny_architectures import DECODERS
from tiny_models import make_tiny_llama

WAYS = [{}, {"sleeps": True}, {"overlap_steps": False}, {"enforce_eager": True}]


@pytest.mark.gpu
@pytest.mark.parametrize("name", DECODERS)
def test_recorded_overlapping_and_plain_steps_answer_alike(name, tmp_path):
    folder = DECODERS[name](tmp_path)
    plain = answers_of(folder, enforce_eager=True, overlap_steps=False)
    for way in WAYS:
        assert_alike(answers_of(folder, **way), plain)


def numbers_of(engine):
    """The bytes of every matrix, on the host."""
    matrices = [module for module in engine.executor._memory.decoder.modules() if isinstance(module, Matrix)]
    operands = [matrix.weight if matrix.packed is None else matrix.packed.panels for matrix in matrices]
    return [operand.detach().cpu().view(torch.uint8) for operand in operands]


@pytest.mark.gpu
@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_weights_leave_the_gpu_for_a_sleep_and_come_back_as_they_were(quantization, tmp_path):
    folder = make_tiny_llama(tmp_path, hidden=1024, heads=8, layers=4, intermediate_size=4096)
    settings = {"dtype": "bfloat16", "quantization": quantization, "allow_inaccurate_quantization": True}
    engine = build_one_rank_engine(config_of(folder, **settings), folder)
    try:
        before, awake = numbers_of(engine), torch.cuda.memory_allocated()
        engine.sleep(1)
        assert awake - torch.cuda.memory_allocated() > sum(len(each.flatten()) for each in before)
        engine.wake()
        assert all(map(torch.equal, numbers_of(engine), before))
        assert torch.cuda.memory_allocated() == pytest.approx(awake, rel=0.1)
    finally:
        engine.exit()
