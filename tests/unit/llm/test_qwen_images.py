"""Images in prompts of Qwen2-VL and Qwen2.5-VL, whose tokens have three positions, beside transformers."""

import json

import pytest
from safetensors.torch import load_file, save_file

from rayinfer import LLM, SamplingParams
from support.golden.image_answers import GREEDY, check_like_transformers, generate, prompt_of, text_of, tokens_of
from support.tiny_models.tiny_qwen_vision import IMAGE, TransformersQwenVision, make_tiny_qwen_vision_model
from support.tiny_models.tiny_vision import picture_of

SETTINGS = {"dtype": "float32", "num_kv_blocks": 200, "block_size": 8, "num_threads": 1}
CHUNKS = {"max_num_batched_tokens": 13, "enable_prefix_caching": False}
CASES = {
    "no image": [],
    "square": [(48, 48)],
    "wide": [(100, 40)],
    "tall": [(7, 300)],
    "three": [(71, 49), (10, 10), (40, 100)],
}
TEXT = "Once upon a time there was a little house"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_qwen_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def theirs(folder):
    return TransformersQwenVision(folder)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), max_num_batched_tokens=512, **SETTINGS) as llm:
        yield llm


def pictures(case):
    return [picture_of(width, height, shift) for shift, (width, height) in enumerate(CASES[case])]


def inputs_of(case, theirs):
    return theirs.inputs(text_of(CASES[case], IMAGE), pictures(case))


def check_cases(llm, theirs, cases=tuple(CASES)):
    outputs = generate(llm, [prompt_of(pictures(case), IMAGE) for case in cases], GREEDY)
    for case, output in zip(cases, outputs, strict=True):
        check_like_transformers(output, inputs_of(case, theirs), theirs)
    return outputs


def test_answers_are_those_of_transformers_in_a_batch_and_in_chunks(llm, folder, theirs):
    with LLM(str(folder), **SETTINGS | CHUNKS) as chunking:
        assert tokens_of(check_cases(llm, theirs)) == tokens_of(check_cases(chunking, theirs))


@pytest.mark.models  # for their time
@pytest.mark.parametrize("ranks", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_answers_are_those_of_transformers_over_ranks(ranks, folder, theirs):
    with LLM(str(folder), **SETTINGS | CHUNKS | {ranks: 2}) as llm:
        check_cases(llm, theirs, ["three"])


@pytest.mark.models
@pytest.mark.parametrize("ranks", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
def test_answers_of_the_first_family_are_those_of_transformers(ranks, tmp_path):
    folder = make_tiny_qwen_vision_model(tmp_path, family="qwen2_vl", tie=True)
    with LLM(str(folder), **SETTINGS | CHUNKS | ranks) as llm:
        check_cases(llm, TransformersQwenVision(folder, family="qwen2_vl"))


def test_text_alone_has_the_bits_of_a_model_without_images(llm, folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"] | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(text))
    weights = load_file(folder / "model.safetensors")
    weights = {name: weight for name, weight in weights.items() if not name.startswith(("visual.", "model.visual."))}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with LLM(str(tmp_path), max_num_batched_tokens=512, **SETTINGS) as without:
        (wanted,) = generate(without, [TEXT], GREEDY)
    # Beside images, too, whose rows the text may have had before.
    _, got = generate(llm, [prompt_of(pictures("three"), IMAGE), TEXT], GREEDY)
    assert got.outputs == wanted.outputs
    assert got.prompt_logprobs == wanted.prompt_logprobs


def test_a_preempted_request_gets_its_positions_again(folder, llm):
    prompts = [prompt_of([picture_of(72, 72, shift)], IMAGE) for shift in range(3)]
    longer = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    wanted = generate(llm, prompts, longer)
    with LLM(str(folder), **SETTINGS | {"num_kv_blocks": 22}) as small:
        assert tokens_of(generate(small, prompts, longer)) == tokens_of(wanted)
        assert small.stats.num_preemptions_total > 0


def test_a_continued_request_gets_its_positions_again(llm):
    """As after a migration: its first tokens come with it."""
    prompt = prompt_of(pictures("three"), IMAGE)
    (whole,) = generate(llm, [prompt], GREEDY)
    with_output = prompt | {"prompt_token_ids": [*whole.prompt_token_ids, *whole.outputs[0].token_ids[:20]]}
    del with_output["prompt"]
    (rest,) = generate(llm, [with_output], SamplingParams(temperature=0.0, max_tokens=44, ignore_eos=True))
    assert rest.num_cached_tokens > len(whole.prompt_token_ids)
    assert rest.outputs[0].token_ids == whole.outputs[0].token_ids[20:]
