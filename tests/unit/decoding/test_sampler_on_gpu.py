import numpy as np
import pytest
import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.sampling_params import SamplingParams

VOCAB = 5000
SETTINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=50, min_p=0.01),
    SamplingParams(temperature=1.2, top_p=0.9, min_tokens=2),
    SamplingParams(top_k=1000, top_p=0.95, repetition_penalty=1.2),
    SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.5),
]


def drawn_on(device, dtype):
    sampler = Sampler(len(SETTINGS), VOCAB, device)
    for row, params in enumerate(SETTINGS):
        sampler.enter(
            row, params, seed=row, choice=0, prompt_token_ids=[1, 2, 3], output_token_ids=[4], end_token_ids=[2, 9]
        )
    rows = np.arange(len(SETTINGS))
    tokens = []
    for position in range(4, 40):
        generator = torch.Generator().manual_seed(position)
        logits = torch.randn(len(rows), VOCAB, generator=generator).mul(3).to(dtype)
        tokens.append(sampler.sample(logits.to(device), rows, np.full(len(rows), position)).token_ids.tolist())
    return tokens


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_draws_from_the_same_logits_what_a_cpu_draws(dtype):
    assert drawn_on("cuda", dtype) == drawn_on("cpu", dtype)
