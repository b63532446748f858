"""Images in prompts of `LLM`, beside transformers: sizes, counts, batches, chunks, caches, preemption and refusals."""

import base64
import struct
import zlib

import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.errors import InvalidParameter, NotSupported, RequestError
from support.golden import image_answers as answers
from support.golden.image_answers import GREEDY, SHORT, check_like_transformers, generate, text_of, tokens_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_vision import TransformersVision, encoded, make_tiny_vision_model, picture_of

SETTINGS = {"dtype": "float32", "num_kv_blocks": 200, "block_size": 8, "num_threads": 1}
CHUNKS = {"max_num_batched_tokens": 13, "enable_prefix_caching": False}
IMAGE = "<image>"
# Sizes, aspect ratios and counts; of the same size: pictures that differ.
CASES = {
    "no image": [],
    "one tile": [(24, 24)],
    "wide": [(100, 40)],
    "tall": [(7, 300)],
    "three": [(71, 49), (10, 10), (40, 100)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def theirs(folder):
    return TransformersVision(folder)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), max_num_batched_tokens=512, **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def chunking_llm(folder):
    """Of 13 tokens a step, so that chunks begin and end within the 9 tokens of a tile."""
    with LLM(str(folder), **CHUNKS, **SETTINGS) as llm:
        yield llm


def prompt_of(images, text=None):
    return answers.prompt_of(images, IMAGE, text)


def pictures(case):
    return [picture_of(width, height, shift) for shift, (width, height) in enumerate(CASES[case])]


def test_answers_to_images_are_those_of_transformers_in_a_batch_and_in_chunks(llm, chunking_llm, theirs):
    prompts = [prompt_of(pictures(case)) for case in CASES]
    whole, chunked = generate(llm, prompts, GREEDY), generate(chunking_llm, prompts, GREEDY)
    assert tokens_of(whole) == tokens_of(chunked)
    for case, output, in_chunks in zip(CASES, whole, chunked, strict=True):
        inputs = theirs.inputs(text_of(CASES[case], IMAGE), pictures(case))
        check_like_transformers(output, inputs, theirs)
        check_like_transformers(in_chunks, inputs, theirs)


@pytest.mark.models  # for their time
@pytest.mark.parametrize("ranks", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
def test_answers_of_smolvlm_are_those_of_transformers(ranks, tmp_path):
    folder = make_tiny_vision_model(tmp_path, family="smolvlm", tie=True)
    theirs = TransformersVision(folder, family="smolvlm")
    with LLM(str(folder), **SETTINGS | CHUNKS | ranks) as llm:
        for case, output in zip(
            CASES, generate(llm, [prompt_of(pictures(case)) for case in CASES], GREEDY), strict=True
        ):
            check_like_transformers(output, theirs.inputs(text_of(CASES[case], IMAGE), pictures(case)), theirs)


def test_a_conversation_with_images_in_any_form_has_one_answer(llm, theirs):
    image = picture_of(60, 40)
    url = "data:image/png;base64," + base64.b64encode(encoded(image)).decode()
    parts = [
        {"type": "image", "image": image},
        {"type": "image_pil", "image_pil": image},
        {"type": "image", "image": encoded(image)},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
    ]
    asked = {"type": "text", "text": "What is this?"}
    chats = [[{"role": "user", "content": [part, asked]}] for part in parts]
    outputs = llm.chat(chats, SHORT, use_tqdm=False)
    text = "<|im_start|>User:<image> What is this?<end_of_utterance>\nAssistant:"
    inputs = theirs.inputs(text, [image])
    assert all(output.prompt_token_ids == inputs.token_ids for output in outputs)
    answer = theirs.logits(inputs, outputs[0].outputs[0].token_ids)[len(inputs.token_ids) - 1 : -1].argmax(-1).tolist()
    assert tokens_of(outputs) == [answer] * len(parts)


def test_each_image_is_encoded_once(folder):
    images = [picture_of(50, 50), picture_of(50, 50, 1)]
    with LLM(str(folder), enable_prefix_caching=False, **SETTINGS) as llm:
        first = generate(llm, [prompt_of(images), prompt_of(images[::-1])])
        again = generate(llm, [prompt_of(images)])
        stats = llm.stats.images
        assert (stats.encodings_total, stats.queries_total, stats.cache_hits_total) == (2, 6, 4)
        assert stats.encode_seconds_total > 0
    assert tokens_of(first)[0] == tokens_of(again)[0] != tokens_of(first)[1]


def test_blocks_are_shared_by_the_same_images_only(llm):
    one, other = picture_of(70, 70, 2), picture_of(70, 70, 3)
    alone, with_other, again = (generate(llm, [prompt_of([image])])[0] for image in (one, other, one))
    assert alone.prompt_token_ids == with_other.prompt_token_ids
    assert with_other.num_cached_tokens == 0
    assert again.num_cached_tokens >= len(again.prompt_token_ids) - 8
    assert tokens_of([alone]) == tokens_of([again]) != tokens_of([with_other])
    # Beside each other neither waits for the other's blocks.
    together = generate(llm, [prompt_of([one]), prompt_of([other])])
    assert tokens_of(together) == tokens_of([alone, with_other])


def test_a_preempted_request_computes_its_images_again(folder, llm):
    images = [[picture_of(72, 72, shift)] for shift in range(3)]
    prompts = [prompt_of(each) for each in images]
    wanted = [generate(llm, [prompt])[0] for prompt in prompts]
    longer = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    wanted = generate(llm, prompts, longer)
    with LLM(str(folder), **SETTINGS | {"num_kv_blocks": 40}) as small:
        assert tokens_of(generate(small, prompts, longer)) == tokens_of(wanted)
        assert small.stats.num_preemptions_total > 0
        assert small.stats.kv_blocks_used == 0


def test_images_are_known_again_after_sleep(folder):
    prompt = prompt_of([picture_of(40, 40)])
    with LLM(str(folder), **SETTINGS) as llm:
        before = generate(llm, [prompt])
        llm.sleep(2)
        llm.wake()
        assert tokens_of(generate(llm, [prompt])) == tokens_of(before)


def test_several_choices_and_drafts_see_the_images(folder, llm):
    prompt = prompt_of([picture_of(30, 70)])
    params = SamplingParams(temperature=1.0, max_tokens=20, n=3, seed=5, ignore_eos=True)
    wanted = [choice.token_ids for choice in generate(llm, [prompt], params)[0].outputs]
    with LLM(str(folder), speculation="auto", **SETTINGS) as drafting:
        assert [choice.token_ids for choice in generate(drafting, [prompt], params)[0].outputs] == wanted


def png_header(width, height):
    data = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + data
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(data)) + chunk + struct.pack(">I", zlib.crc32(chunk))


HOSTILE = {
    "bomb of 100 gigapixels": (png_header(316_228, 316_228), InvalidParameter, "8192 pixels a side"),
    "bomb within the sides": (png_header(8192, 8192), InvalidParameter, "25000000 in all"),
    "cut off": (encoded(picture_of(60, 60))[:-400], RequestError, "the image is broken"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", InvalidParameter, "must be an image: JPEG, PNG or WebP"),
    "gif": (encoded(picture_of(9, 9), "GIF"), InvalidParameter, "must be an image: JPEG, PNG or WebP"),
    "frames": (
        encoded(picture_of(9, 9), "WEBP", save_all=True, append_images=[picture_of(9, 9, 1)], lossless=True),
        RequestError,
        "several frames",
    ),
    "loopback": ("http://127.0.0.1:8000/metrics", NotSupported, "not fetched from URLs"),
    "file": ("file:///etc/passwd", NotSupported, "not fetched from URLs of 'file'"),
    "not base64": ("data:image/png;base64,%%%", InvalidParameter, "not valid base64"),
    "number": (17, InvalidParameter, "must be an image of Pillow, bytes or a data: URL"),
    "too many bytes": (b"\x89PNG\r\n\x1a\n" + bytes(11 << 20), InvalidParameter, "may have 10485760 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused_and_hurt_no_other(name, llm):
    content, error, message = HOSTILE[name]
    good = prompt_of([picture_of(20, 20)])
    with pytest.raises(error, match=message):
        generate(llm, [good, prompt_of([content])])
    assert not llm.has_unfinished_requests()
    assert len(tokens_of(generate(llm, [good]))[0]) == 8


def test_too_many_images_are_refused_at_once(llm):
    with pytest.raises(InvalidParameter, match="may have 8 images, got 10000"):
        generate(llm, [prompt_of([b""] * 10_000)])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt": "no marker", "multi_modal_data": {"image": encoded(picture_of(9, 9))}}, "0 times, for 1 images"),
        ({"prompt": "a", "multi_modal_data": {"audio": b""}}, "may hold image alone"),
        ({"multi_modal_data": {}}, "either prompt or prompt_token_ids"),
        ({"prompt_token_ids": [5, 6], "multi_modal_data": {"image": encoded(picture_of(9, 9))}}, "0 tokens for images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_prompts_that_do_not_fit_their_images_are_refused(prompt, message, llm):
    with pytest.raises(InvalidParameter, match=message):
        generate(llm, [prompt])


def test_models_and_engines_without_images_refuse_them(folder, tmp_path):
    image = picture_of(9, 9)
    with LLM(str(make_tiny_llama(tmp_path)), **SETTINGS) as llm:
        with pytest.raises(InvalidParameter, match="this model takes no images"):
            generate(llm, [prompt_of([image])])
        with pytest.raises(InvalidParameter, match="this model takes no images"):
            llm.chat([{"role": "user", "content": [{"type": "image", "image": image}]}], SHORT, use_tqdm=False)
    with LLM(str(folder), engine="static", max_num_seqs=2, max_model_len=256, dtype="float32") as llm:
        assert not llm.description.takes_images
        with pytest.raises(InvalidParameter, match="takes no images"):
            generate(llm, [prompt_of([image])])
        assert len(tokens_of(generate(llm, ["some text"]))[0]) == 8
