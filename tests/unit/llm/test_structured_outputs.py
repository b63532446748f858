import json
import re

import pytest

from rayinfer import LLM, SamplingParams, StructuredOutputsParams
from rayinfer.errors import InvalidParameter
from rayinfer.protocols import GenerationRequest

SETTINGS = {"dtype": "float32", "num_kv_blocks": 64, "block_size": 8, "max_num_batched_tokens": 64}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
JSON = {"json": SCHEMA, "disable_any_whitespace": True}
PATTERN = {"regex": "[a-f]{30}-[0-9]{20}"}
FORMS = (JSON, PATTERN, {"choice": ["the quick brown fox", "no"]}, None, {"regex": "(the quick ){9}"})


def drawn(form, **settings):
    return SamplingParams(**{"temperature": 1.2, "max_tokens": 80, "structured_outputs": form, **settings})


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        yield llm


def texts(outputs):
    return [choice.text for output in outputs for choice in output.outputs]


def is_valid(text):
    answer = json.loads(text)
    return list(answer) == ["ok", "n"] and type(answer["ok"]) is bool and 0 <= answer["n"] <= 99


def test_answers_of_several_choices_follow_their_own_grammars(llm):
    forms = [JSON, PATTERN, {"choice": ["yes", "no"]}, None]
    params = [drawn(form, n=3, seed=7) for form in forms]
    outputs = llm.generate(["the quick brown fox"] * 4, params, use_tqdm=False)
    assert all(map(is_valid, texts(outputs[:1])))
    assert all(re.fullmatch(PATTERN["regex"], text) for text in texts(outputs[1:2]))
    assert set(texts(outputs[2:3])) <= {"yes", "no"}
    assert {choice.finish_reason for output in outputs[:3] for choice in output.outputs} == {"stop"}
    assert not any(map(is_json, texts(outputs[3:])))


def test_a_form_given_to_generate_or_chat_holds_all_answers(llm):
    form = StructuredOutputsParams(choice=["yes", "no"])
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=20)
    outputs = llm.generate(["the quick", "brown fox"], params, structured=form, use_tqdm=False)
    outputs += llm.generate(["the quick"], [params], structured=form, use_tqdm=False)
    assert set(texts(outputs)) <= {"yes", "no"}
    assert params.structured_outputs is None


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize(
    "settings",
    [{}, {"logprobs": 3}, {"repetition_penalty": 1.3, "presence_penalty": 0.5}, {"logit_bias": {5: 50.0}}],
)
def test_other_settings_keep_answers_within_the_grammar(llm, temperature, settings):
    params = drawn(JSON, temperature=temperature, seed=3, **settings)
    (text,) = texts(llm.generate(["Once upon a time"], params, use_tqdm=False))
    assert is_valid(text)


def test_answers_that_are_cut_say_so(llm):
    (output,) = llm.generate(["Once upon a time"], drawn(PATTERN, max_tokens=5), use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"
    assert re.fullmatch("[a-f]{1,30}", output.outputs[0].text)


def test_an_answer_that_meets_a_limit_of_its_grammar_says_which_and_hurts_no_other(llm):
    members = {f"p{i}": {"type": "string"} for i in range(400)}
    items = [{"enum": [1, 2]}, {"type": "object", "properties": members}]
    late = {"json": {"type": "array", "prefixItems": items, "minItems": 2}, "disable_any_whitespace": True}
    prompts = ["Once upon a time, " * 6] * 2
    failed, other = llm.generate(prompts, [drawn(late, seed=1), drawn(JSON, seed=1)], use_tqdm=False)
    assert failed.outputs[0].finish_reason == "error"
    assert "(limit max_items_in_row: 1000)" in failed.outputs[0].error
    assert is_valid(other.outputs[0].text)
    assert other.outputs[0].error is None
    (again,) = llm.generate(prompts[:1], SamplingParams(max_tokens=2), use_tqdm=False)
    assert again.num_cached_tokens > 0  # its blocks are sound


def test_logprobs_stay_those_of_the_unmodified_logits(llm):
    params = drawn(PATTERN, temperature=0.0, logprobs=0, max_tokens=1, seed=1)
    free = SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)
    (bound,) = llm.generate(["Once upon a time"], params, use_tqdm=False)
    token_id = bound.outputs[0].token_ids[0]
    listed = SamplingParams(temperature=0.0, max_tokens=1, logprobs=5, logprob_token_ids=[token_id])
    (unbound,) = llm.generate(["Once upon a time"], listed, use_tqdm=False)
    ours, theirs = bound.outputs[0].logprobs[0], unbound.outputs[0].logprobs[0]
    assert free.structured_outputs is None
    assert ours[token_id].logprob == pytest.approx(theirs[token_id].logprob)


def test_preempted_and_slept_answers_are_those_of_an_undisturbed_run(folder, llm):
    prompts = [f"the quick brown fox {i}" for i in range(6)]
    params = [drawn(PATTERN, seed=i) for i in range(6)]
    expected = texts(llm.generate(prompts, params, use_tqdm=False))
    with LLM(str(folder), **{**SETTINGS, "num_kv_blocks": 16}) as small:
        ids = [small.add_request(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        answers, num_steps = {}, 0
        while small.has_unfinished_requests():
            answers |= {output.request_id: output.outputs[0].text for output in small.step()}
            num_steps += 1
            if num_steps in (10, 30):
                small.sleep(2)
                small.wake()
        assert small.stats.num_preemptions_total > 2
    assert [answers[name] for name in ids] == expected
    assert all(re.fullmatch(PATTERN["regex"], text) for text in expected)


def test_answers_stay_valid_and_equal_under_150_preemptions(folder, llm):
    forms = [PATTERN, {"regex": "([a-d]{4},){9}[a-d]"}, {"grammar": 'start: ("<" /[0-9]{3}/ ">"){12}'}]
    prompts = [f"the quick brown fox {i}" for i in range(90)]
    params = [drawn(forms[i % 3], seed=i) for i in range(90)]
    expected = texts(llm.generate(prompts, params, use_tqdm=False))
    with LLM(str(folder), **{**SETTINGS, "num_kv_blocks": 24, "max_num_seqs": 16}) as small:
        assert texts(small.generate(prompts, params, use_tqdm=False)) == expected
        assert small.stats.num_preemptions_total >= 150
    patterns = [PATTERN["regex"], forms[1]["regex"], "(<[0-9]{3}>){12}"]
    assert all(re.fullmatch(patterns[i % 3], text) for i, text in enumerate(expected))


@pytest.mark.parametrize("num_known", [1, 7, 40])
def test_a_migrated_answer_goes_on_where_it_was(llm, num_known):
    params = drawn(PATTERN, seed=11)
    prompt = llm.tokenizer.encode("Once upon a time")
    (whole,) = llm.generate([prompt], params, use_tqdm=False)
    token_ids = whole.outputs[0].token_ids
    known = token_ids[: min(num_known, len(token_ids) - 2)]
    request = GenerationRequest(
        request_id="moved/0", prompt_token_ids=prompt, output_token_ids=known, sampling_params=params
    )
    llm.engine.add_request(request)
    rest = []
    while llm.engine.has_unfinished_requests:
        rest += [token for delta in llm.engine.step() for token in delta.token_ids]
    assert [*known, *rest] == list(token_ids)


def test_steps_ahead_give_the_same_answers(folder, llm):
    prompts, params = ["the quick brown fox"] * 3, [drawn(form, seed=5) for form in (JSON, PATTERN, None)]
    expected = texts(llm.generate(prompts, params, use_tqdm=False))
    with LLM(str(folder), async_scheduling=True, **SETTINGS) as ahead:
        assert texts(ahead.generate(prompts, params, use_tqdm=False)) == expected


@pytest.mark.parametrize("steps", [{}, {"async_scheduling": True}], ids=["waiting", "overlapped"])
@pytest.mark.parametrize("speculation", ["auto", 6])
@pytest.mark.parametrize("num_kv_blocks", [64, 16])
def test_drafts_give_the_same_answers(speculation, num_kv_blocks, steps, folder, llm):
    prompts = ["the quick brown fox the quick"] * len(FORMS)
    params = [drawn(form, seed=5, n=2, repetition_penalty=1.1, logprobs=1) for form in FORMS]
    expected = llm.generate(prompts, params, use_tqdm=False)
    settings = {**SETTINGS, **steps, "num_kv_blocks": num_kv_blocks, "speculation": speculation}
    with LLM(str(folder), **settings) as drafting:
        got = drafting.generate(prompts, params, use_tqdm=False)
        stats = drafting.stats
    assert [output.outputs for output in got] == [output.outputs for output in expected]
    assert stats.accepted_draft_tokens_total > 40  # mostly what grammars force
    assert (stats.num_preemptions_total > 0) == (num_kv_blocks == 16)


def test_drafts_in_pipeline_stages_give_the_same_answers(folder):
    prompts, settings = ["the quick brown fox the quick"] * len(FORMS), {"seed": 5, "n": 2, "logprobs": 1}
    with LLM(str(folder), pipeline_parallel_size=2, **SETTINGS) as llm:
        without, drafting = (
            llm.generate(prompts, [drawn(form, speculation=each, **settings) for form in FORMS], use_tqdm=False)
            for each in ("off", 6)
        )
        stats = llm.stats
    assert [output.outputs for output in drafting] == [output.outputs for output in without]
    assert stats.accepted_draft_tokens_total > 40


@pytest.mark.parametrize(
    "ranks", ["tensor_parallel_size", pytest.param("pipeline_parallel_size", marks=pytest.mark.every_case)]
)
def test_several_ranks_give_the_same_answers(folder, llm, ranks):
    prompts, params = ["the quick brown fox"] * 3, [drawn(form, seed=5) for form in (JSON, PATTERN, None)]
    expected = texts(llm.generate(prompts, params, use_tqdm=False))
    with LLM(str(folder), **{ranks: 2}, **SETTINGS) as several:
        assert texts(several.generate(prompts, params, use_tqdm=False)) == expected


def test_a_grammar_that_does_not_compile_is_refused_at_once(llm):
    with pytest.raises(InvalidParameter, match="uniqueItems"):
        llm.generate(["a"], drawn({"json": {"type": "array", "uniqueItems": True}}), use_tqdm=False)
    assert llm.stats.num_running == llm.stats.num_waiting == 0


def test_a_limit_met_in_the_middle_ends_one_answer_only(llm):
    costly = drawn(
        {"regex": "(a{1,1000}){1,1000}b"}, max_tokens=120, seed=1, logit_bias={llm.tokenizer.encode("a")[-1]: 50.0}
    )
    outputs = llm.generate(["Once upon a time"] * 2, [costly, drawn(PATTERN, seed=2)], use_tqdm=False)
    assert outputs[0].outputs[0].finish_reason in ("error", "length")
    assert re.fullmatch(PATTERN["regex"], outputs[1].outputs[0].text)
