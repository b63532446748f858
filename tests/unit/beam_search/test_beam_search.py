"""Beam search of a real engine beside that of transformers."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from rayinfer import LLM, BeamSearchParams, SamplingParams
from rayinfer.beam_search.search import BeamSearch
from rayinfer.errors import InvalidParameter, PromptTooLong
from rayinfer.outputs import Logprob
from support.tiny_models.tiny_checkpoints import make_tiny_llama

SETTINGS = {"dtype": "float32", "num_kv_blocks": 256, "block_size": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def reference(folder):
    """The sequences and scores of transformers' beam search."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def search(prompt, *, width, eos, **settings):
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            eos_token_id=list(eos) or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
        return found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist()

    return search


def beams(llm, prompt, **params):
    (output,) = llm.beam_search([prompt], BeamSearchParams(**params), use_tqdm=False)
    return output.outputs


def score(choice, length_penalty):
    total = sum(tokens[token_id].logprob for tokens, token_id in zip(choice.logprobs, choice.token_ids, strict=True))
    return total / len(choice.token_ids) ** length_penalty


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_sequences_are_those_of_transformers(llm, reference, early_stopping, length_penalty):
    rng = random.Random(f"{early_stopping} {length_penalty}")
    num_stopped = 0
    for width in (2, 3, 5):
        prompt = [rng.randrange(3, 380) for _ in range(rng.randrange(1, 40))]
        ends = tuple(rng.sample(range(384), 24))  # so many that most sequences end before their limit
        choices = beams(
            llm,
            prompt,
            beam_width=width,
            max_tokens=12,
            ignore_eos=True,
            stop_token_ids=ends,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        sequences, scores = reference(
            prompt,
            width=width,
            eos=ends,
            max_new_tokens=12,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        assert [each.token_ids for each in choices] == [
            sequence[: len(each.token_ids)] for each, sequence in zip(choices, sequences, strict=True)
        ]
        assert [score(each, length_penalty) for each in choices] == pytest.approx(scores, rel=1e-5, abs=1e-5)
        num_stopped += sum(each.finish_reason == "stop" for each in choices)
        assert all((each.finish_reason == "stop") == (each.token_ids[-1] in ends) for each in choices)
    if length_penalty < 2:
        assert num_stopped


def test_one_beam_is_the_greedy_answer(llm):
    (greedy,) = llm.generate("the quick brown", SamplingParams(temperature=0.0, max_tokens=9), use_tqdm=False)
    (choice,) = beams(llm, greedy.prompt_token_ids, beam_width=1, max_tokens=9)
    assert (choice.token_ids, choice.text) == (greedy.outputs[0].token_ids, greedy.outputs[0].text)


def test_prompts_of_several_lengths_and_settings_are_searched_together(llm):
    prompts = [[5, 6, 7], [9] * 30, [11, 12]]
    params = [BeamSearchParams(beam_width=width, max_tokens=length) for width, length in ((3, 4), (2, 9), (4, 1))]
    together = llm.beam_search(prompts, params, use_tqdm=False)
    alone = [llm.beam_search([prompt], each, use_tqdm=False)[0] for prompt, each in zip(prompts, params, strict=True)]
    assert [output.outputs for output in together] == [output.outputs for output in alone]
    assert [len(output.outputs) for output in together] == [3, 2, 4]


def test_the_context_bounds_a_search(llm):
    longest = llm.description.max_model_len
    choices = beams(llm, [7] * (longest - 3), beam_width=2, max_tokens=20, ignore_eos=True)
    assert [len(each.token_ids) for each in choices] == [3, 3]
    with pytest.raises(PromptTooLong, match="prompt 1"):
        llm.beam_search([[5], [7] * longest], BeamSearchParams(), use_tqdm=False)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 513}, "beam_width"),
        ({"beam_width": True}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"early_stopping": "always"}, "early_stopping"),
    ],
)
def test_wrong_settings_are_named(settings, named):
    with pytest.raises(InvalidParameter) as caught:
        BeamSearchParams(**settings)
    assert caught.value.param == named


def test_equal_candidates_are_ordered_by_their_tokens():
    for order in ([3, 1, 2], [2, 3, 1]):
        search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=2), ())
        tokens = {token_id: Logprob(-1.0, 1) for token_id in order}
        search.advance([tokens])
        assert [beam.token_ids for beam in search.running] == [(1,), (2,)]
        search.advance([tokens, tokens])
        assert [beam.token_ids for beam in search.best] == [(1, 1), (1, 2)]
