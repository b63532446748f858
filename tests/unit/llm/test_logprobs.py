"""Log probabilities and traces of a real engine, as callers of LLM get them."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from rayinfer import LLM, SamplingParams
from rayinfer.errors import PromptTooLong

PROMPT = "the quick brown fox jumps over"
SETTINGS = {"dtype": "float32", "num_kv_blocks": 64, "block_size": 8, "max_num_batched_tokens": 24}


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def reference(folder):
    """The log probabilities of every next token, as transformers has them."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def logprobs(token_ids):
        with torch.no_grad():
            return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)

    return logprobs


def greedy(**params):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True} | params)


def only(outputs):
    (output,) = outputs
    return output


def check_places(places, token_ids, rows, num_top):
    for place, token_id, row in zip(places, token_ids, rows, strict=True):
        assert next(iter(place)) == token_id
        assert place[token_id].rank == 1 + int((row > row[token_id]).sum())
        best = row.topk(num_top).indices.tolist()
        assert place.keys() == {token_id, *best}
        for each, told in place.items():
            assert told.logprob == pytest.approx(row[each].item(), abs=1e-4)


@pytest.mark.parametrize("params", [{}, {"temperature": 1.5, "seed": 3}, {"logit_bias": {9: 50.0}}], ids=str)
def test_log_probabilities_are_those_before_every_setting(llm, reference, params):
    output = only(llm.generate(PROMPT, greedy(logprobs=3, **params), use_tqdm=False))
    (answer,) = output.outputs
    prompt = output.prompt_token_ids
    rows = reference([*prompt, *answer.token_ids])[len(prompt) - 1 : -1]
    check_places(answer.logprobs, answer.token_ids, rows, 3)


LISTED = (5, 300, 9)


def test_listed_tokens_have_the_log_probabilities_of_the_whole_vocabulary_beside_other_requests(llm, reference):
    asked = [{"logprobs": 0}, {"logprobs": 3, "logprob_token_ids": LISTED}, {"logprobs": 0, "logprob_token_ids": [7]}]
    outputs = llm.generate([PROMPT] * 4, [greedy(**each) for each in (*asked, {})], use_tqdm=False)
    assert [output.outputs[0].logprobs is None for output in outputs] == [False, False, False, True]
    for output, params in zip(outputs, asked, strict=False):
        prompt, answer = output.prompt_token_ids, output.outputs[0]
        rows = reference([*prompt, *answer.token_ids])[len(prompt) - 1 : -1]
        for place, token_id, row in zip(answer.logprobs, answer.token_ids, rows, strict=True):
            best = row.topk(params["logprobs"]).indices.tolist()
            listed = params.get("logprob_token_ids", ())
            assert list(place) == list(dict.fromkeys((token_id, *best, *listed)))
            assert [place[each].logprob for each in place] == pytest.approx(row[list(place)].tolist(), abs=1e-4)
            assert all(place[each].rank is None for each in listed if each not in (token_id, *best))


def test_a_prompt_is_scored_over_the_whole_vocabulary(llm, reference):
    output = only(llm.generate(PROMPT, greedy(prompt_logprobs=-1, max_tokens=0), use_tqdm=False))
    rows = reference(output.prompt_token_ids)
    check_places(output.prompt_logprobs[1:], output.prompt_token_ids[1:], rows[:-1], rows.shape[1])


def test_a_prompt_is_scored_with_or_without_an_answer_and_whatever_is_cached(llm, reference):
    plain = only(llm.generate(PROMPT, greedy(), use_tqdm=False))
    for params in (greedy(prompt_logprobs=2), greedy(prompt_logprobs=2, n=3), greedy(prompt_logprobs=2, max_tokens=0)):
        output = only(llm.generate(PROMPT, params, use_tqdm=False))
        prompt = output.prompt_token_ids
        assert output.prompt_logprobs[0] is None
        check_places(output.prompt_logprobs[1:], prompt[1:], reference(prompt)[:-1], 2)
        for answer in output.outputs:
            assert answer.token_ids == ([] if params.max_tokens == 0 else plain.outputs[0].token_ids)
            assert answer.finish_reason == "length"
            assert answer.logprobs is None


def test_a_prompt_that_fills_the_context_can_be_scored_but_not_continued(llm):
    longest = [5] * llm.description.max_model_len
    output = only(llm.generate([longest], SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False))
    assert len(output.prompt_logprobs) == len(longest)
    with pytest.raises(PromptTooLong):
        llm.generate([longest], SamplingParams(max_tokens=1), use_tqdm=False)


def test_a_stream_has_the_prompt_and_every_token_once(llm):
    params = greedy(logprobs=1, prompt_logprobs=1, n=2)
    whole = only(llm.generate(PROMPT, params, use_tqdm=False))
    deltas = list(llm.stream(PROMPT, params))
    assert [delta.prompt_logprobs for delta in deltas] == [whole.prompt_logprobs] + [None] * (len(deltas) - 1)
    for index, answer in enumerate(whole.outputs):
        parts = [part for delta in deltas for part in delta.outputs if part.index == index]
        assert [place for part in parts for place in part.logprobs or []] == answer.logprobs


def test_a_stop_string_cuts_log_probabilities_with_their_tokens(llm):
    whole = only(llm.generate(PROMPT, greedy(logprobs=0), use_tqdm=False)).outputs[0]
    stop = whole.text[3:5]
    cut = only(llm.generate(PROMPT, greedy(logprobs=0, stop=stop), use_tqdm=False)).outputs[0]
    assert 0 < len(cut.token_ids) < len(whole.token_ids)
    assert cut.logprobs == whole.logprobs[: len(cut.token_ids)]


# Traces


def names_of(output, choice=None):
    wanted = [event for event in output.trace if choice is None or event.details["choice"] == choice]
    return [event.name for event in wanted]


def test_only_a_traced_request_has_events(llm):
    prompt = [7 * number % 300 + 3 for number in range(60)]
    traced = only(llm.generate([prompt], greedy(), trace=True, use_tqdm=False))
    assert names_of(traced) == ["queued", "admitted", *["prefill_chunk"] * 3, "first_token", "finished"]
    times = [event.time_s for event in traced.trace]
    assert times == sorted(times)
    assert traced.trace[-1].details == {"choice": 0, "reason": "length", "output_tokens": 6}
    again = only(llm.chat([{"role": "user", "content": "hello"}], greedy(), trace=True, use_tqdm=False))
    assert names_of(again)[-1] == "finished"
    assert only(llm.generate([prompt], greedy(), use_tqdm=False)).trace is None


def test_every_choice_has_its_own_events(llm):
    output = only(llm.generate(PROMPT, greedy(n=3), trace=True, use_tqdm=False))
    for choice in range(3):
        assert names_of(output, choice)[0] == "queued"
        assert names_of(output, choice)[-1] == "finished"
        assert names_of(output, choice).count("finished") == 1


def test_a_stop_string_is_reported_with_the_engines_events(llm):
    text = only(llm.generate(PROMPT, greedy(), use_tqdm=False)).outputs[0].text
    output = only(llm.generate(PROMPT, greedy(stop=text[3:5], max_tokens=40), trace=True, use_tqdm=False))
    assert names_of(output)[0] == "queued"
    assert output.trace[-1].details["reason"] == "stop"
    assert output.trace[-1].details["output_tokens"] == len(output.outputs[0].token_ids)


def test_a_trace_comes_with_the_last_output(llm):
    deltas = list(llm.stream(PROMPT, greedy(), trace=True))
    assert [delta.trace is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    llm.add_request(PROMPT, greedy(), trace=True)
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert [output.trace is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert names_of(outputs[-1]) == names_of(deltas[-1])
