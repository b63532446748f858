"""LoRA adapters of an LLM: by request, in any batch, in any memory, and never with another one's cached prefix."""

import shutil

import pytest

from rayinfer import LLM, LoRARequest, SamplingParams
from rayinfer.errors import AdapterRefused, ConfigError, InvalidParameter
from support.tiny_models.tiny_adapters import make_adapter
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.trained_adapter import train_adapter

SETTINGS = {"block_size": 8, "num_kv_blocks": 96, "enable_lora": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
PROMPTS = [[9, 8, 7, 200, 6], [31, 5] * 20, [4, 80, 90, 3] * 9, [17] * 33]


@pytest.fixture(scope="module")
def adapters(folder, tmp_path_factory):
    """Four adapters of the tiny model."""
    root = tmp_path_factory.mktemp("adapters")
    paths = [make_adapter(root / str(number), folder, rank=1 + number, seed=number) for number in range(4)]
    return [LoRARequest(f"adapter-{number}", number, str(path)) for number, path in enumerate(paths)]


@pytest.fixture(scope="module")
def undisturbed(folder, adapters):
    """Answers in one batch that has room for all."""
    return generate(folder, PROMPTS * 5, [None, *adapters] * 4)


def exact(output):
    """Tokens and the bits of their log probabilities."""
    (choice,) = output.outputs
    return choice.token_ids, [
        place[token].logprob for token, place in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


def generate(folder, prompts, lora_requests, params=GREEDY, **settings):
    with LLM(str(folder), **SETTINGS | settings) as llm:
        outputs = llm.generate(prompts, params, lora_request=lora_requests, use_tqdm=False)
        assert llm.stats.kv_blocks_used == 0
        return [exact(output) for output in outputs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_request_of_a_mixed_batch_has_the_bits_that_it_has_alone(folder, adapters, dtype):
    prompts, chosen = (PROMPTS * 5)[:10], [None, *adapters] * 2
    mixed = generate(folder, prompts, chosen, dtype=dtype)
    with LLM(str(folder), **SETTINGS, dtype=dtype, max_num_seqs=1, enable_prefix_caching=False) as llm:
        for prompt, adapter, got in zip(prompts, chosen, mixed, strict=True):
            (alone,) = llm.generate([prompt], GREEDY, lora_request=adapter, use_tqdm=False)
            assert exact(alone) == got
    with LLM(str(folder), **SETTINGS | {"enable_lora": False}, dtype=dtype) as base:
        without = [exact(output) for output in base.generate(prompts, GREEDY, use_tqdm=False)]
    for index, adapter in enumerate(chosen):
        assert (mixed[index] == without[index]) == (adapter is None)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 9},
        {"num_kv_blocks": 14, "max_num_seqs": 6, "kv_offload_bytes": 1 << 20},
        {"max_loras": 1},
        {"max_loras": 2, "max_cpu_loras": 2, "max_num_seqs": 3},
        {"max_lora_bytes": 34_000},
        {"max_cpu_lora_bytes": 34_000, "max_num_seqs": 2},
    ],
    ids=str,
)
def test_answers_do_not_depend_on_batches_preemption_and_memory(folder, adapters, undisturbed, settings):
    assert generate(folder, PROMPTS * 5, [None, *adapters] * 4, **settings) == undisturbed


def test_static_engines_empty_slots_as_dynamic_ones_do(folder, adapters):
    settings = {"engine": "static", "max_num_seqs": 2, "max_model_len": 64, "num_kv_blocks": None}
    expected = generate(folder, PROMPTS[:1] * 8, adapters * 2, **settings)
    assert generate(folder, PROMPTS[:1] * 8, adapters * 2, **settings, max_lora_bytes=34_000) == expected


@pytest.mark.parametrize("level", [0, 1, 2])
def test_answers_are_the_same_after_sleep(folder, adapters, level):
    with LLM(str(folder), **SETTINGS) as llm:
        names = [llm.add_request(PROMPTS[1], GREEDY, lora_request=adapter) for adapter in [None, *adapters]]
        outputs = {}
        while llm.has_unfinished_requests():
            outputs |= {output.request_id: output for output in llm.step()}
            llm.sleep(level)
            llm.wake()
    expected = generate(folder, [PROMPTS[1]] * 5, [None, *adapters])
    assert [exact(outputs[name])[0] for name in names] == [tokens for tokens, _ in expected]


def test_no_block_is_shared_between_adapters_or_contents_of_one_name(folder, adapters, tmp_path):
    prompt, path = PROMPTS[1], tmp_path / "changing"
    with LLM(str(folder), **SETTINGS) as llm:

        def answer(adapter):
            before = llm.stats.cached_prompt_tokens_total
            (output,) = llm.generate([prompt], GREEDY, lora_request=adapter, use_tqdm=False)
            return exact(output), llm.stats.cached_prompt_tokens_total - before

        one = LoRARequest("one", 1, str(shutil.copytree(adapters[0].lora_path, path)))
        first, cached = answer(one)
        assert cached == 0
        assert answer(one) == (first, 32)
        assert answer(None)[1] == 0
        shutil.copytree(adapters[1].lora_path, path, dirs_exist_ok=True)
        second, cached = answer(one)
        assert cached == 0
        assert second != first
    assert [second] == generate(folder, [prompt], adapters[1])


def test_quantized_models_take_adapters(folder, adapters):
    settings = {"quantization": "int8-dynamic", "allow_inaccurate_quantization": True, "dtype": "bfloat16"}
    mixed = generate(folder, PROMPTS, [None, *adapters[:3]], **settings)
    base = generate(folder, PROMPTS, None, **settings)
    assert [got == without for got, without in zip(mixed, base, strict=True)] == [True, False, False, False]


def test_an_adapter_trained_on_a_text_makes_the_model_continue_it(folder, tmp_path):
    text = [(7 * i * i + 3 * i + 11) % 380 + 3 for i in range(28)]
    adapter = LoRARequest("by heart", 1, str(train_adapter(tmp_path, folder, text)))
    with LLM(str(folder), **SETTINGS, dtype="float32") as llm:
        params = SamplingParams(temperature=0.0, max_tokens=len(text) - 4, ignore_eos=True)
        trained, base = llm.generate([text[:4]] * 2, params, lora_request=[adapter, None], use_tqdm=False)
    assert trained.outputs[0].token_ids == text[4:]
    assert base.outputs[0].token_ids != text[4:]


def test_a_refused_adapter_affects_no_other_request(folder, adapters, tmp_path):
    other = make_tiny_llama(tmp_path / "other", hidden=32)
    foreign = LoRARequest("foreign", 9, str(make_adapter(tmp_path / "foreign", other)))
    with LLM(str(folder), **SETTINGS) as llm:
        name = llm.add_request(PROMPTS[0], GREEDY, lora_request=adapters[0])
        llm.step()
        with pytest.raises(AdapterRefused, match=r"lora_A\.weight has shape"):
            llm.generate(PROMPTS, GREEDY, lora_request=foreign, use_tqdm=False)
        outputs = {}
        while llm.has_unfinished_requests():
            outputs |= {output.request_id: output for output in llm.step()}
    assert [exact(outputs[name])] == generate(folder, PROMPTS[:1], adapters[0])


def test_wrong_requests_and_settings_are_refused(folder, adapters, tmp_path):
    with LLM(str(folder), **SETTINGS, max_lora_rank=2) as llm:
        with pytest.raises(AdapterRefused, match="above max_lora_rank 2"):
            llm.generate(PROMPTS, GREEDY, lora_request=adapters[2], use_tqdm=False)
        with pytest.raises(InvalidParameter, match="2 entries for 4 prompts"):
            llm.generate(PROMPTS, GREEDY, lora_request=adapters[:2], use_tqdm=False)
        with pytest.raises(InvalidParameter, match="must be a LoRARequest"):
            llm.generate(PROMPTS[:1], GREEDY, lora_request=["adapter-0"], use_tqdm=False)
    with (
        LLM(str(folder), **SETTINGS | {"enable_lora": False}) as llm,
        pytest.raises(InvalidParameter, match="enable_lora"),
    ):
        llm.generate(PROMPTS, GREEDY, lora_request=adapters[0], use_tqdm=False)
    with pytest.raises(ConfigError, match="max_cpu_loras 3 must not be below max_loras 4"):
        LLM(str(folder), enable_lora=True, max_loras=4, max_cpu_loras=3)
    with pytest.raises(ConfigError, match="record_schedule"):
        LLM(str(folder), enable_lora=True, record_schedule=str(tmp_path))
