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
    SamplingParams(temperature=0.9, typical_p=0.8, logprobs=2),
    SamplingParams(logit_bias={7: 4.0, 8: -100.0}, bad_token_sequences=[[7], [9, 8], [40, 41, 42]]),
    SamplingParams(temperature=0.0, allowed_token_ids=range(20, 60), bad_token_sequences=[[20, 21]], logprobs=5),
]


def drawn_on(device, dtype):
    """Tokens and log probabilities of some steps."""
    sampler = Sampler(len(SETTINGS), VOCAB, device)
    for row, params in enumerate(SETTINGS):
        sampler.add_row(
            row, params, seed=row, choice=0, prompt_token_ids=[1, 2, 3], output_token_ids=[4], end_token_ids=[2, 9]
        )
    rows = np.arange(len(SETTINGS))
    tokens, scores = [], []
    for position in range(4, 40):
        generator = torch.Generator().manual_seed(position)
        logits = torch.randn(len(rows), VOCAB, generator=generator).mul(3).to(dtype)
        sampled = sampler.sample(logits.to(device), rows, np.full(len(rows), position))
        tokens.append(sampled.token_ids.tolist())
        scores.append(sampled.logprobs)
    return tokens, scores


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_draws_and_scores_like_a_cpu(dtype):
    tokens, scores = drawn_on("cpu", dtype)
    tokens_on_gpu, scores_on_gpu = drawn_on("cuda", dtype)
    assert tokens_on_gpu == tokens
    for ours, theirs in zip(scores_on_gpu, scores, strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert ours.ranks.tolist() == theirs.ranks.tolist()
        torch.testing.assert_close(ours.logprobs.cpu(), theirs.logprobs, atol=1e-5, rtol=0)
