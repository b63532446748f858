"""Requests for a sampler: settings of every kind, and short ways to enter and draw."""

import numpy as np
import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.sampling_params import SamplingParams

VOCAB = 700  # not a whole number of blocks
EOS = 2

MIXED_BY_NAME = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "small top_k": SamplingParams(temperature=0.7, top_k=5),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8),
    "top_k, top_p, min_p": SamplingParams(top_k=300, top_p=0.95, min_p=0.02),
    "min_p": SamplingParams(min_p=0.1),
    "repetition": SamplingParams(repetition_penalty=1.3, top_k=40),
    "greedy penalized": SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    "frequency, min_tokens": SamplingParams(frequency_penalty=-0.5, top_p=0.6, min_tokens=4),
    "greedy, min_tokens": SamplingParams(temperature=0.0, min_tokens=10),
    "large top_k": SamplingParams(temperature=2.0, top_k=200),
    "typical_p": SamplingParams(typical_p=0.4),
    "min_p, typical_p": SamplingParams(temperature=1.5, min_p=0.03, typical_p=0.8),
    "greedy, bias": SamplingParams(temperature=0.0, logit_bias={50: 6.5, 51: 6.0, 600: -100.0}),
    "allowed": SamplingParams(allowed_token_ids=[699, 30, 31, 32, 5, 40]),
    "bad sequences": SamplingParams(
        temperature=0.0, allowed_token_ids=[20, 21, 30], bad_token_sequences=[[20, 21, 30], [21, 20, 21], [30, 30]]
    ),
    "all": SamplingParams(
        temperature=0.9,
        top_k=90,
        top_p=0.9,
        min_p=0.01,
        typical_p=0.9,
        repetition_penalty=1.2,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={20: 5.0, 21: 5.0, 22: 5.0, 23: -3.0},
        allowed_token_ids=range(20, 60),
        bad_token_sequences=[[20, 21], [21, 22], [22, 20], [50]],
        min_tokens=6,
        logprobs=3,
    ),
}
MIXED_NAMES = list(MIXED_BY_NAME)
MIXED = list(MIXED_BY_NAME.values())


def logits_of(seed, num_rows=1, spread=2.0):
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def enter(sampler, row, params, *, seed=1, choice=0, prompt=(10, 11, 12), outputs=(), end_token_ids=(EOS,)):
    sampler.add_row(
        row,
        params,
        seed=seed,
        choice=choice,
        prompt_token_ids=list(prompt),
        output_token_ids=list(outputs),
        end_token_ids=end_token_ids,
    )


def sample(sampler, logits, rows, positions):
    return sampler.sample(logits, np.array(rows), np.array(positions)).token_ids.tolist()


def draw_alone(logits, params, *, position=3, **request):
    sampler = Sampler(1, VOCAB)
    enter(sampler, 0, params, **request)
    return sample(sampler, logits, [0], [position])[0]
