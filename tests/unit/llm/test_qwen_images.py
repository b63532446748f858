"""Images in prompts of Qwen2-VL and Qwen2.5-VL, whose tokens have three positions, beside transformers."""

import json

import pytest
from safetensors.torch import load_file, save_file

from rayinfer import LLM, SamplingParams
from rayinfer.errors import InvalidParameter, RequestError
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


@pytest.mark.parametrize("ranks", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_answers_are_those_of_transformers_over_ranks(ranks, folder, theirs):
    with LLM(str(folder), **SETTINGS | CHUNKS | {ranks: 2}) as llm:
        check_cases(llm, theirs, ["three"])


def test_answers_of_the_first_family_are_those_of_transformers(tmp_path):
    folder = make_tiny_qwen_vision_model(tmp_path, family="qwen2_vl", tie=True)
    with LLM(str(folder), **SETTINGS | CHUNKS) as llm:
        check_cases(llm, TransformersQwenVision(folder, family="qwen2_vl"), ["three"])


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


def test_drafts_are_verified_at_their_positions(folder, llm):
    prompt = prompt_of([picture_of(30, 70)], IMAGE)
    (wanted,) = generate(llm, [prompt], GREEDY)
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLM(str(folder), speculation="auto", **SETTINGS) as drafting:
        assert tokens_of(generate(drafting, [prompt, prompt], params)) == tokens_of([wanted, wanted])
        assert drafting.stats.accepted_draft_tokens_total > 0


def test_blocks_are_shared_by_the_same_images_only(llm):
    one, other = picture_of(70, 70, 2), picture_of(70, 70, 3)
    alone, with_other, again = (generate(llm, [prompt_of([image], IMAGE)])[0] for image in (one, other, one))
    assert with_other.num_cached_tokens == 0
    assert again.num_cached_tokens >= len(again.prompt_token_ids) - 8
    assert tokens_of([alone]) == tokens_of([again]) != tokens_of([with_other])


def test_a_conversation_is_written_by_the_checkpoints_template(llm, theirs):
    image, asked = picture_of(60, 40), {"type": "text", "text": "What is this?"}
    chat = [{"role": "user", "content": [{"type": "image", "image": image}, asked]}]
    (output,) = llm.chat(chat, GREEDY, use_tqdm=False)
    inputs = theirs.inputs(f"<|im_start|>user\n{IMAGE}What is this?<|im_end|>\n<|im_start|>assistant\n", [image])
    check_like_transformers(output, inputs, theirs)


def test_a_config_without_a_part_for_text_is_read(folder, theirs, tmp_path):
    """As published checkpoints have it."""
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = text | config | {"model_type": "qwen2_5_vl", "rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(flat))
    with LLM(str(tmp_path), **SETTINGS) as llm:
        (output,) = generate(llm, [prompt_of(pictures("wide"), IMAGE)], GREEDY)
    check_like_transformers(output, inputs_of("wide", theirs), theirs)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ({"prompt": "a", "multi_modal_data": {"video": b""}}, InvalidParameter, "image alone, got.*video"),
        (prompt_of([picture_of(201, 1)], IMAGE), InvalidParameter, "200 times as long as the other, got 201 x 1"),
        ({"prompt_token_ids": [5], "multi_modal_data": {"image": picture_of(201, 1)}}, RequestError, "200 times"),
        (prompt_of([picture_of(9, 9)], IMAGE, "no marker"), InvalidParameter, r"<\|image_pad\|> 0 times, for 1 im"),
    ],
    ids=["video", "longer than wide", "longer than wide, by tokens", "no marker"],
)
def test_what_cannot_be_read_is_refused(prompt, error, message, llm):
    with pytest.raises(error, match=message):
        generate(llm, [prompt])
    assert not llm.has_unfinished_requests()


def test_videos_in_conversations_are_refused_by_name(llm):
    chat = [{"role": "user", "content": [{"type": "video", "video": "x.mp4"}]}]
    with pytest.raises(InvalidParameter, match="got 'video'"):
        llm.chat(chat, use_tqdm=False)


def test_the_tokens_of_an_image_must_stand_together(llm):
    image = picture_of(16, 16)
    (output,) = generate(llm, [prompt_of([image], IMAGE)])
    token_ids = output.prompt_token_ids
    place = token_ids.index(llm.get_tokenizer().encode("<|image_pad|>")[-1])
    torn = [*token_ids[: place + 1], 7, *token_ids[place + 1 :]]
    with pytest.raises(InvalidParameter, match="must stand together"):
        generate(llm, [{"prompt_token_ids": torn, "multi_modal_data": {"image": image}}])
