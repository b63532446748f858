"""The embedded model answers a question, in the arithmetic of its checkpoint."""

from dataclasses import replace

import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.models.model_config import read_model_config

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.fixture(scope="module")
def llm():
    with LLM("smollm2-135m", num_kv_blocks=64) as llm:
        yield llm


def test_the_checkpoint_is_in_bfloat16(model_folder):
    assert read_model_config(model_folder).dtype == "bfloat16"


def test_the_capital_of_france_is_paris(llm):
    (output,) = llm.chat(QUESTION, GREEDY, use_tqdm=False)
    assert "Paris" in output.outputs[0].text


def test_the_capital_of_france_is_paris_whatever_the_seed_without_a_temperature(llm):
    params = [replace(llm.get_default_sampling_params(), seed=seed) for seed in range(20)]
    outputs = llm.chat([QUESTION] * 20, params, use_tqdm=False)
    assert ["Paris" in output.outputs[0].text for output in outputs] == [True] * 20


def test_the_capital_of_france_is_paris_when_streamed_too(llm):
    outputs = list(llm.stream(QUESTION, GREEDY))
    assert len(outputs) > 1
    assert outputs[-1].finished
    assert "Paris" in "".join(output.outputs[0].text for output in outputs)
