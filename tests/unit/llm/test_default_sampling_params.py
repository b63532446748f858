import json
from dataclasses import replace

import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.errors import ConfigError

SETTINGS = {"dtype": "float32", "num_kv_blocks": 64, "block_size": 8}
GREEDY_OF_FIVE = {"temperature": 0.0, "max_new_tokens": 5, "eos_token_id": 383}


@pytest.fixture(scope="module")
def greedy_folder(folder, tmp_path_factory):
    """The model with a generation config that makes answers greedy and of five tokens."""
    copy = tmp_path_factory.mktemp("greedy")
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "generation_config.json").write_text(json.dumps(GREEDY_OF_FIVE))
    return copy


@pytest.fixture(scope="module")
def llm(greedy_folder):
    with LLM(str(greedy_folder), **SETTINGS) as llm:
        yield llm


def tokens(output):
    return output.outputs[0].token_ids


def test_answers_without_parameters_have_the_models_defaults(llm):
    conversation = [{"role": "user", "content": "hello"}]
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=5)
    greedy = SamplingParams(temperature=0.0, max_tokens=5)
    (expected,) = llm.generate("hello", greedy, use_tqdm=False)
    (generated,) = llm.generate("hello", use_tqdm=False)
    assert tokens(generated) == tokens(expected)
    assert len(tokens(generated)) == 5
    streamed = [token for output in llm.stream("hello") for token in tokens(output)]
    assert streamed == tokens(expected)
    llm.add_request("hello")
    while llm.has_unfinished_requests():
        outputs = llm.step()
    assert tokens(outputs[0]) == tokens(expected)
    (chatted,) = llm.chat(conversation, use_tqdm=False)
    assert tokens(chatted) == tokens(llm.chat(conversation, greedy, use_tqdm=False)[0])


def test_explicit_parameters_keep_their_own_defaults(llm):
    (output,) = llm.generate("hello", SamplingParams(seed=1, ignore_eos=True), use_tqdm=False)
    (drawn,) = llm.generate("hello", SamplingParams(seed=1, ignore_eos=True, temperature=1.0), use_tqdm=False)
    (greedy,) = llm.generate("hello", SamplingParams(ignore_eos=True, temperature=0.0), use_tqdm=False)
    assert len(tokens(output)) == 16
    assert tokens(output) == tokens(drawn) != tokens(greedy)


def test_none_and_overrides_change_the_defaults(greedy_folder):
    with LLM(str(greedy_folder), generation_config="none", **SETTINGS) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
    overrides = {"temperature": 0.3, "max_new_tokens": None}
    with LLM(str(greedy_folder), override_generation_config=overrides, **SETTINGS) as llm:
        assert llm.get_default_sampling_params() == replace(SamplingParams(), temperature=0.3)
        assert llm.default_sampling_params() == llm.get_default_sampling_params()


def test_a_wrong_override_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"override_generation_config: .*top_p must lie in \(0, 1\], got 2"):
        LLM("nowhere", override_generation_config={"top_p": 2})
