import json
from base64 import b64encode
from dataclasses import replace

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from rayinfer.errors import ConfigError, InvalidParameter, NotSupported
from rayinfer.jobs.batch_job import batch_job, configure_batch_job, read_batch_job
from rayinfer.jobs.interfaces import JobChanged
from rayinfer.jobs.seeds import row_seed
from rayinfer.jobs.tasks.row_inputs import InputSettings, order_text, read_prompt, row_sampling_params, template_columns
from rayinfer.llm import LLM
from rayinfer.predictors.predictor import Predictor
from rayinfer.sampling_params import SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_encoders import make_tiny_encoder
from support.tiny_models.tiny_images import picture, png, save_classifier

ENGINE = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 256, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    make_tiny_llama(folder / "model")
    return folder


def run_job(folder, name, rows, **settings):
    source = folder / f"{name}.in.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = batch_job(
        **{"input": str(source), "output": str(folder / f"{name}.jsonl"), "model": str(folder / "model"),
           "engine": ENGINE, "sampling": {"max_tokens": 5, "temperature": 0.8}, **settings}
    )  # fmt: skip
    configure_batch_job(job).infer()
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_texts_are_those_of_llm_generate_and_errors_stay_with_their_rows(folder):
    rows = [
        {"prompt": "plain"},
        {"prompt": "stopped", "sampling_params": {"stop": ["e"], "max_tokens": 40, "seed": 5}},
        {"prompt": "two", "sampling_params": {"n": 2}},
        {"prompt": [5, 6, 7]},
        {"prompt": "wrong", "sampling_params": {"temperature": 9}},
        {"prompt": "x " * 3000},
        {"other": 1},
        {"messages": []},
    ]
    found = run_job(folder, "rows", rows)
    assert [row["error"] is None for row in found] == [True] * 4 + [False] * 4
    assert "temperature must lie in" in found[4]["error"]
    assert "maximum context length" in found[5]["error"]
    assert "no column for the prompt" in found[6]["error"]
    with LLM(str(folder / "model"), **ENGINE) as llm:
        params = [
            replace(SamplingParams(max_tokens=5, temperature=0.8), seed=row_seed(0, str(number))) for number in range(4)
        ]
        params[1] = replace(params[1], stop=["e"], max_tokens=40, seed=5)
        params[2] = replace(params[2], n=2)
        for number in range(4):
            output = llm.generate([rows[number]["prompt"]], params[number], use_tqdm=False)[0]
            texts = [choice.text for choice in output.outputs]
            assert found[number]["text"] == (texts if number == 2 else texts[0])
            used = sum(len(choice.token_ids) for choice in output.outputs)
            assert found[number]["usage"]["completion_tokens"] == used
            assert found[number]["usage"]["prompt_tokens"] == len(output.prompt_token_ids)


def test_outputs_do_not_depend_on_order_batches_and_windows(folder):
    rows = [{"prompt": f"number {number} " * (1 + number % 3)} for number in range(20)]
    one = run_job(folder, "one", rows)
    window = {"window": {"rows": 3, "orders_rows": False}}
    engine = {**ENGINE, "max_num_seqs": 1}
    other = run_job(folder, "other", rows, parameters=window, engine=engine)
    assert [row["text"] for row in one] == [row["text"] for row in other]
    assert len({row["text"] for row in one}) > 10


def test_another_configuration_is_refused_unless_it_is_wanted(folder):
    rows = [{"prompt": "a"}]
    run_job(folder, "kept", rows)
    with pytest.raises(JobChanged, match="sampling"):
        run_job(folder, "kept", rows, sampling={"max_tokens": 6})
    run_job(folder, "kept", rows, engine={**ENGINE, "max_num_seqs": 2})  # no part of the outputs


WRONG = {
    "workers: Input should be greater than or equal to 1": {"workers": 0},
    "colour: there is no such setting": {"colour": 1},
    "sampling: unknown names temprature": {"sampling": {"temprature": 1}},
    "temperature must lie in": {"sampling": {"temperature": 3}},
    "task: 'x' generates text": {"task": "embed"},
    "exclude each other": {"prompt_column": "a", "prompt_template": "{a}"},
    "names no column": {"prompt_template": "always the same"},
    "dtype": {"engine": {"dtype": "float8"}},
    "must be a number of rows": {"parameters": {"max_errors": "half"}},
    "top_k_labels: Input should be": {"top_k_labels": 0},
}


@pytest.mark.parametrize("message", WRONG)
def test_settings_that_cannot_work_are_refused_in_a_line(folder, message):
    settings = WRONG[message]
    with pytest.raises((ConfigError, InvalidParameter)) as caught:
        run_job(folder, "wrong", [{"prompt": "a"}], **settings)
    assert message.removeprefix("task: 'x' ") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_settings_is_read_and_a_broken_one_named(tmp_path):
    good, broken = tmp_path / "job.yaml", tmp_path / "broken.yaml"
    good.write_text("input: a.jsonl\noutput: b.jsonl\nsampling: {temperature: 0}\n")
    assert batch_job(**read_batch_job(good)).sampling == {"temperature": 0}
    for text in ("- a\n", "a: [\n"):
        broken.write_text(text)
        with pytest.raises(ConfigError, match=r"broken\.yaml"):
            read_batch_job(broken)


def test_prompts_come_from_columns_templates_and_batch_lines():
    plain = InputSettings()
    messages = [{"role": "user", "content": "hi"}]
    assert read_prompt({"text": "a", "prompt": "b"}, plain) == "b"
    assert read_prompt({"custom_id": "1", "url": "/v1/x", "body": {"messages": messages}}, plain) == messages
    assert read_prompt({"q": "a", "n": 3}, InputSettings(template="{q} is {n} {{}}")) == "a is 3 {}"
    assert read_prompt({"q": "a"}, InputSettings(column="q", is_chat=True)) == [{"role": "user", "content": "a"}]
    chat = InputSettings(system="Be brief.")
    assert read_prompt({"prompt": "a"}, chat)[0] == {"role": "system", "content": "Be brief."}
    assert order_text({"messages": messages}, plain) == "hi"
    assert order_text({}, plain) == ""
    for wrong in ({"prompt": []}, {"prompt": 4}, {"prompt": [1, "a"]}):
        with pytest.raises(InvalidParameter):
            read_prompt(wrong, plain)
    with pytest.raises(InvalidParameter, match="no column 'q'"):
        read_prompt({"a": 1}, InputSettings(template="{q}"))
    for template in ("{", "{a.b}", "{a!r}", "{a[0]}", "{}"):
        with pytest.raises(ConfigError):
            template_columns(template)


def test_sampling_parameters_of_a_batch_line_are_those_of_its_body():
    defaults = SamplingParams(max_tokens=100)
    line = {
        "url": "/v1/chat/completions",
        "body": {"max_completion_tokens": 7, "logit_bias": {"3": 1}, "stream": False},
    }
    params = row_sampling_params(line, defaults)
    assert params.max_tokens == 7
    assert params.biases == ((3, 1),)
    with pytest.raises(NotSupported, match="tools"):
        row_sampling_params({"url": "/", "body": {"tools": [{}]}}, defaults)
    with pytest.raises(InvalidParameter, match="unknown names: depth"):
        row_sampling_params({"sampling_params": {"depth": 1}}, defaults)


def test_the_model_decides_whether_rows_are_embedded_or_classified(folder):
    rows = [{"text": "the old man"}, {"text": "queen anna " * 80}, {"text": None}, {"text": "paris"}]
    for name, head in (("embedder", "Model"), ("classifier", "ForSequenceClassification")):
        make_tiny_encoder(folder / name, "Bert", head)
    settings = {"sampling": {}, "engine": {"dtype": "float32", "num_threads": 1}}
    vectors = run_job(folder, "vectors", rows, model=str(folder / "embedder"), **settings)
    labels = run_job(folder, "labels", rows, model=str(folder / "classifier"), top_k_labels=2, **settings)
    with Predictor(str(folder / "embedder"), dtype="float32") as predictor:
        expected = predictor.embed(["the old man", "paris"], truncate=True).tolist()
    for row, vector in zip((vectors[0], vectors[3]), expected, strict=True):
        assert row["embedding"] == pytest.approx(vector, abs=1e-6)  # batches differ, and products may be torch's
    assert "the row's text is null" in vectors[2]["error"]
    assert vectors[1]["usage"]["prompt_tokens"] == 64
    with Predictor(str(folder / "classifier"), dtype="float32") as predictor:
        (best,) = predictor.classify(["paris"], top_k=2)
    assert [each["label"] for each in labels[3]["labels"]] == [each.label for each in best]
    assert [each["score"] for each in labels[3]["labels"]] == pytest.approx([each.score for each in best], abs=1e-6)
    with pytest.raises(ConfigError, match="this model does embed"):
        run_job(folder, "wrong-task", rows, model=str(folder / "embedder"), task="score", **settings)


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "n": 2, "temperature": 0.8}
COMPLETION = {"prompt": "hi", "max_completion_tokens": 3}


def batch_lines(*bodies, url="/v1/chat/completions"):
    return [
        {"custom_id": f"row-{index}", "method": "POST", "url": url, "body": body} for index, body in enumerate(bodies)
    ]


def test_batch_lines_become_the_lines_of_a_batchs_output(folder):
    rows = batch_lines(CHAT, COMPLETION, {**CHAT, "tools": [{}]}, CHAT, {"input": "hi"}, CHAT)
    for index, url in ((1, "/v1/completions"), (3, "/v1/completions"), (4, "/v1/responses"), (5, ["/v1/completions"])):
        rows[index]["url"] = url
    found = run_job(folder, "lines", rows, input_format="openai", sampling={"temperature": 0})
    assert [line["custom_id"] for line in found] == [f"row-{number}" for number in range(6)]
    assert len({line["id"] for line in found}) == 6
    chat, completion = (line["response"]["body"] for line in found[:2])
    assert ChatCompletion.model_validate(chat, strict=True).choices[1].message.content
    assert chat["choices"][0]["message"]["content"] != chat["choices"][1]["message"]["content"]
    assert Completion.model_validate(completion, strict=True).usage.completion_tokens == 3
    assert found[2]["response"] is None
    assert found[2]["error"]["code"] == "row_failed"
    assert "tools" in found[2]["error"]["message"]
    assert "no prompt, which /v1/completions needs" in found[3]["error"]["message"]
    assert "computes /v1/chat/completions and /v1/completions" in found[4]["error"]["message"]
    assert found[5]["response"] is None
    columns = run_job(
        folder, "columns", rows, input_format="openai", output_shape="columns", sampling={"temperature": 0}
    )
    assert columns[0]["text"] == [choice["message"]["content"] for choice in chat["choices"]]


def test_a_batch_line_may_have_several_texts_to_embed(folder):
    make_tiny_encoder(folder / "several", "Bert", "Model")
    rows = batch_lines({"input": ["one", "two"]}, {"input": "one"}, {"input": []}, {"input": [1]}, url="/v1/embeddings")
    settings = {"sampling": {}, "engine": {"dtype": "float32", "num_threads": 1}, "model": str(folder / "several")}
    found = run_job(folder, "vectors-of-lines", rows, input_format="openai", **settings)
    first, second = (line["response"]["body"]["data"] for line in found[:2])
    assert [each["index"] for each in first] == [0, 1]
    assert first[0]["embedding"] == pytest.approx(second[0]["embedding"], abs=1e-6)
    assert CreateEmbeddingResponse.model_validate(found[0]["response"]["body"]).data[1].embedding
    assert [line["error"] is None for line in found] == [True, True, False, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output_shape": "openai"}, "is for the input_format openai"),
        ({"input_format": "openai", "output_format": "sqlite"}, "written as JSON lines, not sqlite"),
    ],
)
def test_an_output_that_cannot_hold_batch_lines_is_refused(folder, settings, message):
    with pytest.raises(ConfigError, match=message):
        run_job(folder, "shape", [{"prompt": "a"}], **settings)


def test_images_of_rows_are_bytes_paths_and_base64(folder):
    pictures = [png(picture(40, 40 + number)) for number in range(3)]
    (folder / "classifier-of-images").mkdir()
    save_classifier(folder / "classifier-of-images", "ViT")
    (folder / "photo.png").write_bytes(pictures[0])
    encoded = [b64encode(each).decode() for each in pictures]
    rows = [
        {"image": str(folder / "photo.png")},
        {"image": encoded[0]},
        {"image": f"data:image/png;base64,{encoded[1]}"},
        {"image": {"bytes": None, "path": str(folder / "photo.png")}},
        {"image": str(folder / "missing.png")},
        {"text": "none"},
        {"image": "data:image/png;base64,!"},
    ]
    settings = {"sampling": {}, "engine": {"dtype": "float32", "num_threads": 1}, "top_k_labels": 1}
    found = run_job(folder, "images", rows, model=str(folder / "classifier-of-images"), **settings)
    assert [row["error"] is None for row in found] == [True] * 4 + [False] * 3
    assert found[0]["labels"] == found[1]["labels"] == found[3]["labels"]
    assert found[0]["labels"] != found[2]["labels"]
    assert "there is no image" in found[4]["error"]
