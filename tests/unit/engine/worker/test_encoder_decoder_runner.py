import numpy as np
import pytest
import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.step_plan import NewRequestData
from rayinfer.engine.worker.encoder_decoder_runner import EncoderDecoderRunner
from rayinfer.engine.worker.static_runner import StaticShapes
from rayinfer.kv_cache.cache_tensors import allocate_kv_caches
from rayinfer.models.loader import load_decoder
from rayinfer.sampling_params import SamplingParams
from support.golden.encoder_decoder_runs import make_tiny_t5

ROWS, CPU = 8, torch.device("cpu")


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    decoder = load_decoder(make_tiny_t5(tmp_path_factory.mktemp("t5")), torch.float32, CPU)
    decoder.prepare(torch.float32, CPU, 32)
    decoder.allocate_sources(ROWS + 1, 32, torch.float32, CPU)
    decoder.bind_kv_caches(allocate_kv_caches(2, 4, 8, 4, 16, torch.float32, CPU))
    shapes = StaticShapes(num_rows=ROWS, max_step_tokens=16, max_model_len=8, block_size=8, scratch_block=3)
    return EncoderDecoderRunner(decoder, Sampler(ROWS + 1, 96), CPU, shapes, max_read_tokens=20)


def reader(row, length):
    return NewRequestData(
        row=row,
        params=SamplingParams(temperature=0.0),
        seed=0,
        choice=0,
        prompt_token_ids=np.zeros(1, np.int32),
        output_token_ids=np.zeros(0, np.int32),
        end_token_ids=(),
        source_token_ids=np.zeros(length, np.int32),
    )


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5, 5, 5], [[5, 5, 5]]),
        ([10, 10, 1], [[10, 10], [1]]),
        ([30, 2, 2], [[30], [2, 2]]),
        ([2, 30, 2], [[2], [30], [2]]),
        ([], []),
    ],
)
def test_sources_are_read_together_as_far_as_the_budget_goes(runner, lengths, expected):
    groups = runner.read_together([reader(row, length) for row, length in enumerate(lengths)])
    assert [[len(each.source_token_ids) for each in group] for group in groups] == expected
