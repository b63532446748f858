"""Finish reasons of `generate` and `stream`, above all at the last allowed token."""

import pytest

from rayinfer import LLM, SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama

PROMPT = [40, 41, 42, 200, 7]
LENGTH = 10
WAYS = ["generated", "streamed"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False, eos_token_id=[2, 3])


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), dtype="float32", num_kv_blocks=32) as llm:
        yield llm


@pytest.fixture(scope="module")
def varied(llm):
    """Settings with which every token of the answer is another one, in plain letters."""
    plain = [i for i in range(llm.tokenizer.vocab_size) if (llm.tokenizer.token_text(i).utf8 or b"\xff").isalpha()]
    return {"allowed_token_ids": plain, "frequency_penalty": 2.0, "presence_penalty": 2.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def token_ids(llm, varied):
    """Return what the model answers when nothing ends it but its length."""
    (output,) = llm.generate([PROMPT], _greedy(LENGTH, **varied), use_tqdm=False)
    token_ids = output.outputs[0].token_ids
    assert len(set(token_ids)) == LENGTH
    return token_ids


def _greedy(max_tokens, **settings):
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **settings)


def answer(llm, way, params):
    """Text, number of tokens, and both reasons."""
    if way == "generated":
        (output,) = llm.generate([PROMPT], params, use_tqdm=False)
        (choice,) = output.outputs
        return choice.text, len(choice.token_ids), choice.finish_reason, choice.stop_reason
    choices = [output.outputs[0] for output in llm.stream(PROMPT, params)]
    assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
    text = "".join(choice.text for choice in choices)
    num_tokens = sum(len(choice.token_ids) for choice in choices)
    return text, num_tokens, choices[-1].finish_reason, choices[-1].stop_reason


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_id_as_the_last_allowed_token_stops(way, llm, varied, token_ids):
    for count in range(1, LENGTH + 1):
        stop_id = token_ids[count - 1]
        before = llm.tokenizer.decode(token_ids[: count - 1])
        params = _greedy(count, stop_token_ids=[stop_id], **varied)
        assert answer(llm, way, params) == (before, count, "stop", stop_id)
        if count > 1:
            params = _greedy(count - 1, stop_token_ids=[stop_id], **varied)
            assert answer(llm, way, params) == (before, count - 1, "length", None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end_id", [2, 3])
def test_each_end_token_as_the_last_allowed_token_stops_unless_it_is_ignored(way, end_id, llm):
    ends_at_once = {"logit_bias": {end_id: 100.0}}
    assert answer(llm, way, _greedy(1, **ends_at_once))[1:] == (1, "stop", None)
    assert answer(llm, way, _greedy(1, ignore_eos=True, **ends_at_once))[1:] == (1, "length", None)
    assert answer(llm, way, _greedy(1, min_tokens=1, **ends_at_once))[1:] == (1, "length", None)


@pytest.mark.parametrize("includes", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_string_that_the_last_allowed_token_completes_stops(way, includes, llm, varied, token_ids):
    texts = [llm.tokenizer.decode(token_ids[:count]) for count in range(LENGTH + 1)]
    num_checked = 0
    for count in range(2, LENGTH + 1):
        stop = texts[count][len(texts[count - 1]) - 1 :]  # the character before it, and what it adds
        if stop in texts[count - 1]:
            continue
        num_checked += 1
        start = texts[count].index(stop)
        shown = texts[count] if includes else texts[count][:start]
        params = {"stop": stop, "include_stop_str_in_output": includes} | varied
        assert answer(llm, way, _greedy(count, **params)) == (shown, count, "stop", stop)
        # One token less: what may have begun the stop string comes out after all.
        assert answer(llm, way, _greedy(count - 1, **params)) == (texts[count - 1], count - 1, "length", None)
    assert num_checked >= 4


@pytest.mark.parametrize("way", WAYS)
def test_the_end_of_the_context_is_an_end_by_length_unless_its_last_token_stops(way, folder, varied, token_ids):
    with LLM(str(folder), dtype="float32", max_model_len=len(PROMPT) + 4, num_kv_blocks=8) as llm:
        assert answer(llm, way, _greedy(None, **varied))[1:] == (4, "length", None)
        stops = {"stop_token_ids": [token_ids[3]]} | varied
        assert answer(llm, way, _greedy(None, **stops))[1:] == (4, "stop", token_ids[3])
