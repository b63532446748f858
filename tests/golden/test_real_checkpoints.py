"""Real checkpoints of further architectures against transformers, which reads the GGUF file that ours were made of.

Both sides have the same weights, rounded to bfloat16 as the conversion does, and compute in float32.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from rayinfer import LLM, SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer
from support.golden.golden_comparison import GoldenRequest, OwnModel, greedy_difference
from support.golden.golden_prompts import GOLDEN_PROMPTS
from support.golden.golden_reference import Reference, greedy_references
from support.tiny_models.real_models import GGUF_FILE, real_model

pytestmark = pytest.mark.models

NUM_TOKENS = 32
LIMITS = {"dtype": "float32", "num_kv_blocks": 200, "max_num_batched_tokens": 256, "max_model_len": 1024}


class Case(NamedTuple):
    """A checkpoint, and what is asked of it."""

    folder: Path
    requests: list[GoldenRequest]


@pytest.fixture(params=["qwen2.5-coder-0.5b", "gemma-3-270m"])
def case(request: pytest.FixtureRequest) -> Case:
    folder = real_model(request.param)
    tokenizer = Tokenizer.from_folder(folder)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    texts = {prompt.name: prompt.text for prompt in GOLDEN_PROMPTS[::5] + GOLDEN_PROMPTS[3::5]}
    by_name = {prompt.name: prompt.text for prompt in GOLDEN_PROMPTS}
    # Longer than Gemma's window of 512 tokens.
    texts["three long ones"] = "\n\n".join(by_name[name] for name in ("minutes", "history in years", "story"))
    return Case(folder, [GoldenRequest(name, tokenizer.encode(text), params) for name, text in texts.items()])


def test_greedy_tokens_of_twenty_one_prompts_are_those_of_transformers(case, unexcused):
    assert len(case.requests) == 21
    assert max(len(request.prompt_token_ids) for request in case.requests) > 600
    with LLM(str(case.folder), num_threads=1, **LIMITS) as llm:
        outputs = llm.generate(
            [request.prompt_token_ids for request in case.requests], case.requests[0].sampling_params, use_tqdm=False
        )
    answers = {
        request.name: output.outputs[0].token_ids for request, output in zip(case.requests, outputs, strict=True)
    }
    assert {len(answer) for answer in answers.values()} == {NUM_TOKENS}
    references, own_model = _references(case, answers), OwnModel(case.folder)
    differences = []
    for request in case.requests:
        expected, their_best_two = references[request.name]
        got = answers[request.name][: len(expected)]
        differences.append(greedy_difference(request, expected, got, their_best_two.__getitem__, own_model))
    assert unexcused(differences) == ""


def _references(case: Case, answers: dict[str, list[int]]) -> dict[str, Reference]:
    """Let the model go at the end: two of them together would be large."""
    unpacked = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.bfloat16}
    rounded = AutoModelForCausalLM.from_pretrained(case.folder, gguf_file=GGUF_FILE, **unpacked)
    # Not `rounded` itself: its constants are rounded, too.
    model = AutoModelForCausalLM.from_config(rounded.config, dtype=torch.float32).eval()
    model.load_state_dict(rounded.state_dict())
    del rounded
    return greedy_references(model, case.requests, answers)
