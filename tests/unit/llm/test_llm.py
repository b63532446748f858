import _thread
import gc
import json
import math
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rayinfer import LLM, SamplingParams
from rayinfer.errors import (
    ConfigError,
    EngineDead,
    InvalidParameter,
    ModelLoadError,
    ModelNotFound,
    PromptTooLong,
    RequestError,
)
from support.tiny_models.tiny_checkpoints import make_tiny_llama

TEXTS = ["What is the capital of France?", "the quick brown fox", "Once upon a time", "for index in range(10):"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SETTINGS = {"dtype": "float32", "num_kv_blocks": 64, "block_size": 8, "max_num_batched_tokens": 64}


@pytest.fixture(scope="module")
def shared_llm(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        yield llm


@pytest.fixture
def llm(shared_llm):
    yield shared_llm
    assert not shared_llm.has_unfinished_requests()
    assert shared_llm.stats.kv_blocks_used == 0
    assert shared_llm.stats.num_running == shared_llm.stats.num_waiting == 0


def texts_of(outputs):
    return [output.outputs[0].text for output in outputs]


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


# generate


def test_outputs_come_in_the_order_of_the_prompts_whoever_ends_first(llm):
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (20, 1, 9, 3)]
    outputs = llm.generate(TEXTS, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == TEXTS
    assert [len(tokens) for tokens in tokens_of(outputs)] == [20, 1, 9, 3]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)
    assert [output.prompt_token_ids for output in outputs] == [llm.tokenizer.encode(text) for text in TEXTS]


def test_greedy_tokens_are_those_of_transformers(llm, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs = llm.generate(TEXTS, GREEDY, use_tqdm=False)
    for output in outputs:
        prompt = torch.tensor([output.prompt_token_ids])
        whole = model.generate(prompt, do_sample=False, max_new_tokens=12, min_new_tokens=12, eos_token_id=None)
        assert output.outputs[0].token_ids == whole[0, prompt.shape[1] :].tolist()


def test_changes_of_stored_blocks_do_not_add_up(llm):
    llm.generate(TEXTS, GREEDY, use_tqdm=False)
    assert llm.engine.take_block_events() == ([], [])


def test_a_text_a_list_of_texts_and_token_ids_are_prompts(llm):
    one = llm.generate(TEXTS[0], GREEDY, use_tqdm=False)
    several = llm.generate(TEXTS[:2], GREEDY, use_tqdm=False)
    by_ids = llm.generate([llm.tokenizer.encode(text) for text in TEXTS[:2]], GREEDY, use_tqdm=False)
    assert len(one) == 1
    assert tokens_of(one)[0] == tokens_of(several)[0] == tokens_of(by_ids)[0]
    assert tokens_of(several) == tokens_of(by_ids)
    assert by_ids[0].prompt is None
    assert llm.generate([], use_tqdm=False) == []


def test_each_answers_text_is_its_tokens_decoded(llm):
    for output in llm.generate(TEXTS, GREEDY, use_tqdm=False):
        assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)


@pytest.mark.parametrize("setting", [{}, {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5}])
def test_an_answer_does_not_depend_on_its_batch(setting, llm):
    params = SamplingParams(**{"seed": 4, "max_tokens": 16, "ignore_eos": True} | setting)
    alone = [llm.generate(text, params, use_tqdm=False)[0] for text in TEXTS]
    assert tokens_of(alone) == tokens_of(llm.generate(TEXTS, params, use_tqdm=False))


def test_several_choices_with_a_seed_differ_and_can_be_had_again(llm):
    params = SamplingParams(n=3, seed=11, temperature=1.5, max_tokens=8, ignore_eos=True)
    first, second = (llm.generate(TEXTS[:2], params, use_tqdm=False) for _ in range(2))
    assert first[0].outputs == second[0].outputs
    assert [output.index for output in first[0].outputs] == [0, 1, 2]
    assert len({tuple(output.token_ids) for output in first[0].outputs}) == 3


def test_without_a_seed_the_engines_seed_decides(folder):
    params = SamplingParams(temperature=1.5, max_tokens=8, ignore_eos=True)
    answers = []
    for seed in (1, 1, 2):
        with LLM(str(folder), seed=seed, **SETTINGS) as llm:
            answers.append(tokens_of(llm.generate([TEXTS[0]] * 2, params, use_tqdm=False)))
    assert answers[0] == answers[1] != answers[2]
    assert answers[0][0] != answers[0][1]


@pytest.mark.parametrize(
    "pressure",
    [{"num_kv_blocks": 9}, {"max_num_batched_tokens": 5}, {"max_num_seqs": 1}, {"enable_prefix_caching": False}],
    ids=str,
)
def test_pressure_changes_no_answer(pressure, llm, folder):
    params = [
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=1.2, seed=5, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=6, repetition_penalty=1.4, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=0.0, presence_penalty=1.0, min_tokens=20, max_tokens=30),
    ]
    wanted = tokens_of(llm.generate(TEXTS, params, use_tqdm=False))
    with LLM(str(folder), **SETTINGS | pressure) as pressed:
        for _ in range(2):
            assert tokens_of(pressed.generate(TEXTS, params, use_tqdm=False)) == wanted
        if pressure.get("num_kv_blocks"):
            assert pressed.stats.num_preemptions_total > 0


def test_min_tokens_holds_the_end_back_and_stops_end_an_answer(llm):
    whole = llm.generate(TEXTS[0], GREEDY, use_tqdm=False)[0].outputs[0]
    stop_id = whole.token_ids[4]
    first = whole.token_ids.index(stop_id)
    stopped = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=[stop_id], ignore_eos=True)
    output = llm.generate(TEXTS[0], stopped, use_tqdm=False)[0].outputs[0]
    assert output.token_ids == whole.token_ids[: first + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop_id)
    held = SamplingParams(
        temperature=0.0, max_tokens=12, min_tokens=first + 2, stop_token_ids=[stop_id], ignore_eos=True
    )
    output = llm.generate(TEXTS[0], held, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) >= first + 2
    assert stop_id not in output.token_ids[: first + 1]


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(llm):
    whole = llm.generate(TEXTS[0], GREEDY, use_tqdm=False)[0].outputs[0].text
    stop = whole[4:6]
    params = SamplingParams(temperature=0.0, max_tokens=12, stop=stop, ignore_eos=True)
    output = llm.generate(TEXTS[0], params, use_tqdm=False)[0].outputs[0]
    assert output.text == whole[: whole.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def test_tokens_can_be_favored_allowed_and_forbidden(llm):
    (plain,) = tokens_of(llm.generate(TEXTS[0], GREEDY, use_tqdm=False))
    (without,) = tokens_of(llm.generate(TEXTS[0], replace(GREEDY, bad_token_sequences=[plain[2:4]])))
    assert without[:3] == plain[:3]
    assert without[3] != plain[3]
    (only,) = tokens_of(llm.generate(TEXTS[0], replace(GREEDY, allowed_token_ids=plain[:3])))
    assert set(only) <= set(plain[:3])
    (favored,) = tokens_of(llm.generate(TEXTS[0], replace(GREEDY, logit_bias={77: 100.0})))
    assert set(favored) == {77}


def test_settings_that_may_leave_no_token_are_refused_before_anything_is_computed(llm):
    ended_at_once = SamplingParams(temperature=0.0, allowed_token_ids=[2], min_tokens=1)  # 2 is the model's end token
    with pytest.raises(InvalidParameter, match=r"prompt 1: allowed_token_ids must leave a token .* got \[2\]"):
        llm.generate([TEXTS[0], TEXTS[1]], [GREEDY, ended_at_once], use_tqdm=False)
    assert not llm.has_unfinished_requests()
    with pytest.raises(InvalidParameter, match=r"allowed_token_ids must leave a token .* got \[7, 8\]"):
        SamplingParams(allowed_token_ids=[7, 8], bad_token_sequences=[[8], [7, 7]])


def test_a_bad_word_does_not_appear(llm):
    (plain,) = tokens_of(llm.generate(TEXTS[1], GREEDY, use_tqdm=False))
    words = [llm.tokenizer.decode([token_id]).strip() for token_id in plain]
    word = next(word for word in words if word.isalpha() and word.isascii())
    output = llm.generate(TEXTS[1], replace(GREEDY, bad_words=[word]), use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == len(plain)
    assert word not in output.text


def test_the_context_ends_an_answer(llm):
    output = llm.generate([[5] * 500], SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)[0]
    assert llm.description.max_model_len == 512
    assert len(output.outputs[0].token_ids) == 12
    assert output.outputs[0].finish_reason == "length"


def test_cached_prompt_tokens_are_reported(llm):
    prompt = [[7 * i % 300 + 3 for i in range(50)]]
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 48


# chat and stream

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def test_chat_answers_one_conversation_or_several_through_the_template(llm):
    prompt = llm.chat_prompt(MESSAGES)
    assert llm.tokenizer.decode(prompt, skip_special_tokens=False).endswith("<|im_start|>assistant\n")
    one = llm.chat(MESSAGES, GREEDY, use_tqdm=False)
    two = llm.chat([MESSAGES, MESSAGES], GREEDY, use_tqdm=False)
    assert tokens_of(one) == tokens_of(llm.generate([prompt], GREEDY, use_tqdm=False))
    assert tokens_of(two) == tokens_of(one) * 2


@pytest.mark.parametrize("prompt", [TEXTS[0], MESSAGES, [5, 6, 7]], ids=["text", "messages", "token ids"])
def test_a_streams_deltas_make_up_the_answer(prompt, llm):
    params = SamplingParams(seed=3, max_tokens=30, ignore_eos=True)
    ids = llm.chat_prompt(MESSAGES) if prompt is MESSAGES else prompt
    whole = llm.generate([ids], params, use_tqdm=False)[0].outputs[0]
    deltas = list(llm.stream(prompt, params))
    assert "".join(delta.outputs[0].text for delta in deltas) == whole.text
    assert [i for delta in deltas for i in delta.outputs[0].token_ids] == whole.token_ids
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert len(deltas) > 5


def test_streams_that_are_read_in_turn_lose_nothing_to_each_other_or_to_generate(llm):
    params = SamplingParams(seed=3, max_tokens=20, ignore_eos=True)
    wanted = texts_of(llm.generate(TEXTS[:2], params, use_tqdm=False))
    streams, got = [llm.stream(text, params) for text in TEXTS[:2]], ["", ""]
    between = []
    for _ in range(3):
        for index, stream in enumerate(streams):
            got[index] += next(stream).outputs[0].text
        between += texts_of(llm.generate(TEXTS[2], GREEDY, use_tqdm=False))
    for index, stream in enumerate(streams):
        got[index] += "".join(delta.outputs[0].text for delta in stream)
    assert got == wanted
    assert len(set(between)) == 1


def test_closing_a_stream_frees_its_request(llm):
    stream = llm.stream(TEXTS[0], SamplingParams(max_tokens=400, ignore_eos=True))
    next(stream)
    assert llm.stats.num_running == 1
    stream.close()
    assert llm.stats.num_running == 0


# Step by step


def test_requests_can_be_added_and_stepped(llm):
    request_id = llm.add_request(TEXTS[0], GREEDY)
    named = llm.add_request([5, 6, 7], GREEDY, request_id="mine")
    assert named == "mine"
    assert llm.has_unfinished_requests()
    lengths, finished = [], {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            if output.request_id == request_id:
                lengths.append(len(output.outputs[0].token_ids))
            if output.finished:
                finished[output.request_id] = output
    assert lengths == sorted(lengths)
    assert finished.keys() == {request_id, "mine"}
    assert tokens_of([finished[request_id]]) == tokens_of(llm.generate(TEXTS[0], GREEDY, use_tqdm=False))


def test_a_step_returns_a_request_once_however_many_of_its_choices_advance(llm):
    llm.add_request(TEXTS[0], SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True))
    steps = []
    while llm.has_unfinished_requests():
        steps.append(llm.step())
    assert [[len(choice.token_ids) for choice in output.outputs] for (output,) in steps if output.finished] == [[4] * 3]


def test_an_abort_midway_frees_the_request_and_leaves_the_others(llm):
    llm.add_request(TEXTS[0], SamplingParams(n=2, max_tokens=400, ignore_eos=True), request_id="long")
    llm.add_request(TEXTS[1], GREEDY, request_id="short")
    llm.step()
    llm.step()
    llm.abort("long")
    llm.abort("never heard of")
    finished = []
    while llm.has_unfinished_requests():
        finished += [output.request_id for output in llm.step() if output.finished]
    assert finished == ["short"]


def test_generate_does_not_lose_what_was_added_before(llm):
    llm.add_request(TEXTS[0], GREEDY, request_id="short")
    llm.add_request(TEXTS[1], SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True), request_id="long")
    between = llm.generate(TEXTS[2:], GREEDY, use_tqdm=False)
    assert len(between) == 2
    finished = {}
    while llm.has_unfinished_requests():
        finished |= {output.request_id: output for output in llm.step() if output.finished}
    assert len(tokens_of([finished["long"]])[0]) == 40
    assert tokens_of([finished["short"]]) == tokens_of(llm.generate(TEXTS[0], GREEDY, use_tqdm=False))


def test_names_of_ones_own_and_given_names_do_not_collide(llm):
    for number in range(200):
        llm.add_request([5], SamplingParams(max_tokens=1), request_id=f"request-{number}")
    assert len(llm.generate(TEXTS, GREEDY, use_tqdm=False)) == 4
    while llm.has_unfinished_requests():
        llm.step()


def test_an_id_in_use_is_refused_and_leaves_the_first_alone(llm):
    llm.add_request(TEXTS[0], GREEDY, request_id="mine")
    with pytest.raises(InvalidParameter, match="'mine' is in use"):
        llm.add_request(TEXTS[1], GREEDY, request_id="mine")
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert outputs[-1].finished
    assert outputs[-1].prompt == TEXTS[0]


# What goes wrong


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], InvalidParameter, "prompt 1: .*empty"),
        ([5] * 600, PromptTooLong, "prompt 1: .*512"),
        ([5, 9999], InvalidParameter, "prompt 1: .*0 to 383, got 9999"),
        ([5, 2**40], InvalidParameter, "prompt 1: .*0 to 383, got 1099511627776"),
        ([5, -1], InvalidParameter, "prompt 1: .*0 to 383, got -1"),
        ([5, "six"], InvalidParameter, "prompt 1: .*token ids"),
        ([5, True], InvalidParameter, "prompt 1: .*token ids"),
        (7, InvalidParameter, "prompt 1: .*token ids"),
        (b"bytes", InvalidParameter, "prompt 1: .*token ids"),
        (None, InvalidParameter, "prompt 1: .*token ids"),
    ],
    ids=repr,
)
def test_one_bad_prompt_is_named_and_leaves_nothing_running(prompt, error, message, llm):
    with pytest.raises(error, match=message) as caught:
        llm.generate([[5, 6], prompt, [7]], GREEDY, use_tqdm=False)
    assert caught.value.param == "prompt"


def test_settings_must_be_one_or_one_for_each_prompt(llm):
    with pytest.raises(RequestError, match="sampling_params must be one or 4"):
        llm.generate(TEXTS, [GREEDY] * 3, use_tqdm=False)
    with pytest.raises(RequestError, match="priority"):
        llm.generate(TEXTS, GREEDY, priority=99, use_tqdm=False)


def test_an_interruption_during_generate_frees_everything_of_its_own_only(llm):
    llm.add_request(TEXTS[0], SamplingParams(temperature=0.0, max_tokens=480, ignore_eos=True), request_id="added")
    wanted = llm.stats.num_steps_total + 20

    def interrupt():
        while llm.stats.num_steps_total < wanted:
            time.sleep(0.001)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5, 6], [7]] * 2, SamplingParams(max_tokens=500, ignore_eos=True), use_tqdm=False)
    thread.join()
    assert llm.stats.num_running == 1
    assert llm.has_unfinished_requests()
    llm.abort("added")


def test_use_tqdm_false_prints_nothing(llm, capfd):
    llm.generate(TEXTS, GREEDY, use_tqdm=False)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_progress_bar_counts_the_prompts(llm, capfd):
    llm.generate(TEXTS, GREEDY)
    assert "4/4" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_num_sequences": 3}, "max_num_sequences"),
        ({"dtype": "float8"}, "dtype"),
        ({"num_kv_blocks": 0}, "num_kv_blocks"),
        ({"max_model_len": 100_000}, "max_model_len 100000 is above the model's 512"),
    ],
)
def test_a_setting_that_cannot_work_is_named(settings, named, folder):
    with pytest.raises(ConfigError, match=named):
        LLM(str(folder), **settings)


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match="nothing-here"):
        LLM(str(tmp_path / "nothing-here"))


def test_a_broken_model_is_named(tmp_path):
    folder = make_tiny_llama(tmp_path)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        LLM(str(folder))


def test_the_pool_and_the_setting_limit_the_context(folder):
    with LLM(str(folder), **SETTINGS | {"num_kv_blocks": 4}) as llm:
        assert llm.description.max_model_len == 32
        with pytest.raises(PromptTooLong, match="32 tokens"):
            llm.add_request([5] * 32)
        assert len(tokens_of(llm.generate([[5] * 31], GREEDY, use_tqdm=False))[0]) == 1
    with LLM(str(folder), max_model_len=20, **SETTINGS) as llm:
        assert llm.description.max_model_len == 20


def test_leaving_the_context_ends_everything_and_gives_the_memory_back(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        decoder = weakref.ref(llm.engine.executor.runner.decoder)
        llm.add_request(TEXTS[0], SamplingParams(max_tokens=400))
        llm.step()
        assert decoder() is not None
    gc.collect()
    assert decoder() is None
    assert not llm.has_unfinished_requests()
    assert llm.stats.kv_blocks_used == 0
    with pytest.raises(EngineDead, match="exited"):
        llm.generate(TEXTS, GREEDY, use_tqdm=False)
    llm.exit()


@pytest.mark.parametrize(
    ("prompts", "params", "param"),
    [
        (None, None, "prompts"),
        (b"text", None, "prompts"),
        ([None], None, "prompt"),
        (["a"], [], "sampling_params"),
        (["a"], {"temperature": 0}, "sampling_params"),
        (["a"], "greedy", "sampling_params"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(llm, prompts, params, param):
    with pytest.raises(InvalidParameter) as refusal:
        llm.generate(prompts, params, use_tqdm=False)
    assert refusal.value.param == param


def test_token_ids_may_come_from_numpy_or_an_iterator(llm):
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    prompts = [[5, 6, 7], np.array([5, 6, 7]), iter([5, 6, 7])]
    from_list, from_array, from_iterator = llm.generate(prompts, params, use_tqdm=False)
    assert from_list.outputs[0].token_ids == from_array.outputs[0].token_ids == from_iterator.outputs[0].token_ids


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"stop_token_ids": [384]}, "stop_token_ids"),
        ({"logit_bias": {384: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [5, 10**6]}, "allowed_token_ids"),
        ({"bad_token_sequences": [[5, 384]]}, "bad_token_sequences"),
        ({"bad_words": ["ab " * 80]}, "bad_words"),
    ],
)
def test_token_ids_that_the_model_lacks_are_refused_before_anything_runs(llm, params, param):
    num_steps = llm.stats.num_steps_total
    with pytest.raises(ValueError, match=param) as refusal:
        llm.generate(["fine", "bad"], [GREEDY, SamplingParams(**params)], use_tqdm=False)
    assert refusal.value.param == param
    assert llm.stats.num_steps_total == num_steps


@pytest.mark.parametrize("value", [11, -11, 1.5, True, "0", None, math.nan, 10**5000], ids=type)
def test_a_priority_is_an_integer_in_its_range(llm, value):
    with pytest.raises(ValueError, match="priority") as refusal:
        llm.generate(TEXTS[0], GREEDY, priority=value, use_tqdm=False)
    assert refusal.value.param == "priority"


@pytest.mark.parametrize("value", [math.nan, "1", [1], True, -1.0, 0, math.inf, 10**5000], ids=type)
def test_a_timeout_is_a_number_of_seconds(llm, value):
    with pytest.raises(ValueError, match="timeout_s") as refusal:
        llm.add_request(TEXTS[0], GREEDY, timeout_s=value)
    assert refusal.value.param == "timeout_s"


@pytest.mark.parametrize("value", [7, b"name", ["a"], True], ids=repr)
def test_a_requests_name_is_a_text(llm, value):
    with pytest.raises(ValueError, match="request_id") as refusal:
        llm.add_request(TEXTS[0], GREEDY, request_id=value)
    assert refusal.value.param == "request_id"


def test_nano_vllms_names_of_settings_reach_the_engine(folder):
    with LLM(str(folder), kvcache_block_size=8, num_kvcache_blocks=64) as llm:
        assert (llm.config.block_size, llm.config.num_kv_blocks) == (8, 64)
        assert llm.generate("hello", SamplingParams(max_tokens=2), use_tqdm=False)[0].outputs[0].token_ids
    with pytest.raises(ConfigError, match="set memory_fraction"):
        LLM(str(folder), gpu_memory_utilization=0.9)
