import numpy as np
import pytest
import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.sampling_params import SamplingParams

VOCAB, END = 20, 3
LOGITS = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=5),
    SamplingParams(temperature=1.0, seed=1, max_tokens=5, min_tokens=5),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=9),
    SamplingParams(temperature=0.7, seed=2, allowed_token_ids=[7, 8], max_tokens=5, logprobs=1),
]


def sampled_at(position, forced_end_token_id):
    sampler = Sampler(4, VOCAB, forced_end_token_id=forced_end_token_id)
    for row, params in enumerate(PARAMS):
        sampler.add_row(
            row,
            params,
            seed=params.seed or 0,
            choice=0,
            prompt_token_ids=[1],
            output_token_ids=[2],
            end_token_ids=(END,),
            last_position=params.max_tokens,
        )
    return sampler.sample(LOGITS, np.arange(4), np.full(4, position))


def test_the_last_token_of_a_request_is_the_end_whatever_its_settings():
    sampled = sampled_at(5, END)
    assert sampled.token_ids[[0, 1, 3]].tolist() == [END] * 3
    assert not sampled.is_invalid.any()


def test_its_log_probability_is_the_models_own():
    scores = sampled_at(5, END).logprobs
    assert scores.token_ids[0, 0] == END
    assert scores.logprobs[0, 0].item() == pytest.approx(LOGITS[3].log_softmax(-1)[END].item())


def test_other_tokens_are_chosen_as_if_there_were_no_forced_end():
    assert torch.equal(sampled_at(4, END).token_ids, sampled_at(4, None).token_ids)
    assert sampled_at(5, END).token_ids[2] == sampled_at(5, None).token_ids[2]
    assert END not in sampled_at(5, None).token_ids
