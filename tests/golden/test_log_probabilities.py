"""Log probabilities of prompts and answers: those of transformers' log_softmax over one forward pass of the whole."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from rayinfer import LLM, SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama

NUM_TOP = 5
ATOL = 1e-4
SETTINGS = {"dtype": "float32", "block_size": 8, "num_kv_blocks": 64, "max_num_batched_tokens": 256}
CASES = {
    "together": {},
    "in chunks of 7": {"max_num_batched_tokens": 7},
    "preempted": {"num_kv_blocks": 12},
    "without a prefix cache": {"enable_prefix_caching": False},
}
PROMPTS = [list(range(3, 3 + 9 * length, 9)) for length in (1, 2, 8, 17, 30)]  # they begin alike, so some could be hit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=True)


@pytest.fixture(scope="module")
def reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def settings_of(index):
    """Some draw, some do not, and nothing that changes the choice changes its logprobs."""
    further = [
        {},
        {"temperature": 0.0},
        {"allowed_token_ids": range(50, 90)},
        {"repetition_penalty": 1.5},
        {"top_k": 3},
    ]
    return SamplingParams(
        max_tokens=9, seed=index, logprobs=index, prompt_logprobs=NUM_TOP - index, ignore_eos=True, **further[index]
    )


def check(places, expected, token_ids, num_top):
    for place, line, token_id in zip(places, expected, token_ids, strict=True):
        assert next(iter(place)) == token_id
        assert set(place) == {token_id, *line.topk(num_top).indices.tolist()}
        for told, logprob in place.items():
            assert logprob.logprob == pytest.approx(line[told].item(), abs=ATOL)
            assert logprob.rank == 1 + (line > line[told]).sum()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_they_are_those_of_one_forward_pass_however_the_tokens_were_computed(folder, reference, case):
    with LLM(str(folder), **SETTINGS | case) as llm:
        outputs = llm.generate(PROMPTS, [settings_of(index) for index in range(len(PROMPTS))], use_tqdm=False)
        if "num_kv_blocks" in case:
            assert llm.stats.num_preemptions_total > 0
    for index, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True)):
        answer = output.outputs[0].token_ids
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        assert len(output.outputs[0].logprobs) == len(answer) == 9
        check(output.outputs[0].logprobs, expected[len(prompt) - 1 : -1], answer, index)
        assert output.prompt_logprobs[0] is None
        check(output.prompt_logprobs[1:], expected[: len(prompt) - 1], prompt[1:], NUM_TOP - index)


def test_a_prompt_can_be_scored_without_an_answer(folder, reference):
    with LLM(str(folder), **SETTINGS) as llm:
        (output,) = llm.generate([PROMPTS[-1]], SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False)
    assert output.outputs[0].token_ids == []
    assert output.outputs[0].finish_reason == "length"
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPTS[-1]])).logits[0].log_softmax(-1)
    check(output.prompt_logprobs[1:], expected[:-1], PROMPTS[-1][1:], 0)
