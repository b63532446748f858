"""Numbers of encoders beside those of transformers, alone and in batches."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3Model

from rayinfer.engine.worker.cores import usable_cores
from rayinfer.errors import ConfigError, InvalidParameter, ModelLoadError, UnsupportedArchitecture
from rayinfer.predictors.runner import RunnerItem
from support.kernels.thread_teams import affinities_of_the_team, in_a_thread
from support.tiny_models.tiny_checkpoints import change_config
from support.tiny_models.tiny_encoders import (
    HEADS,
    SETTINGS,
    make_tiny_encoder,
    save_sentence_layout,
    save_word_pieces,
)

CLOSE = 1e-4
TASKS = {"Model": "token_embed", "ForSequenceClassification": "classify", "ForTokenClassification": "token_classify"}
HAS_TYPES = ("Bert", "NomicBert")


def by_transformers(model, family, item):
    token_ids = torch.tensor([item.token_ids])
    types = {}
    if family in HAS_TYPES:
        num_second = len(item.token_ids) - (item.num_first_tokens or len(item.token_ids))
        types = {"token_type_ids": torch.tensor([[0] * (len(item.token_ids) - num_second) + [1] * num_second])}
    with torch.inference_mode():
        output = model(token_ids, **types)
    return (output.logits if "logits" in output else output.last_hidden_state)[0].numpy()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", SETTINGS)
def test_numbers_are_those_of_transformers(family, head, build, pairs, tmp_path):
    model = make_tiny_encoder(tmp_path, family, head)
    items = [replace(item, task=TASKS[head]) for item in pairs]
    for item, numbers in zip(items, build(tmp_path).run(items), strict=True):
        assert numbers.dtype == np.float32
        assert numbers == pytest.approx(by_transformers(model, family, item), abs=CLOSE)


@pytest.mark.parametrize("family", ["Bert", "MPNet", "ModernBert"])
def test_bits_do_not_depend_on_the_batch(family, build, pairs, tmp_path):
    make_tiny_encoder(tmp_path, family, "ForSequenceClassification")
    runner = build(tmp_path, deterministic=True)
    together = runner.run(pairs)
    for item, numbers in zip(pairs, together, strict=True):
        assert runner.run([item])[0].tobytes() == numbers.tobytes()
        assert runner.run([pairs[0], item, pairs[2]])[1].tobytes() == numbers.tobytes()


@pytest.mark.usefixtures("compiled_kernels")
def test_threads_compute_on_cores_of_their_own(build, texts, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    cores, before = usable_cores(), torch.get_num_threads()

    def team_of(pin_threads: bool) -> list[set[int]]:
        runner = build(tmp_path, num_threads=len(cores), pin_threads=pin_threads)
        runner.run([RunnerItem(task="embed", token_ids=ids) for ids in texts])
        return affinities_of_the_team(len(cores))[1:]

    try:
        assert in_a_thread(lambda: team_of(True)) == [{core} for core in cores[1:]]
        assert in_a_thread(lambda: team_of(False)) == [set(cores)] * (len(cores) - 1)
    finally:
        torch.set_num_threads(before)


def test_an_embedding_has_the_same_bits_beside_items_of_other_tasks(build, texts, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    runner = build(tmp_path, deterministic=True)
    items = [RunnerItem(task=task, token_ids=ids) for ids in texts for task in ("embed", "token_embed")]
    together = runner.run(items)
    for item, numbers in zip(items, together, strict=True):
        assert runner.run([item])[0].tobytes() == numbers.tobytes()
    for embedding, tokens in zip(together[::2], together[1::2], strict=True):
        assert embedding == pytest.approx(tokens.mean(0), abs=1e-6)


def test_a_masked_language_model_is_embedded_with(build, pairs, tmp_path):
    model = make_tiny_encoder(tmp_path, "Bert", "ForMaskedLM")
    item = replace(pairs[2], task="token_embed")
    assert build(tmp_path).run([item])[0] == pytest.approx(by_transformers(model.bert, "Bert", item), abs=CLOSE)


def pooled(hidden, pooling):
    weights = np.arange(1, len(hidden) + 1)[:, None]
    return {
        "cls": hidden[0],
        "lasttoken": hidden[-1],
        "mean": hidden.mean(0),
        "max": hidden.max(0),
        "weightedmean": (hidden * weights).sum(0) / weights.sum(),
    }[pooling]


@pytest.mark.parametrize("pooling", ["cls", "lasttoken", "mean", "max", "weightedmean"])
def test_each_pooling_is_over_a_texts_own_tokens(pooling, build, texts, tmp_path):
    model = make_tiny_encoder(tmp_path, "Bert", "Model")
    save_sentence_layout(tmp_path, pooling=pooling)
    items = [RunnerItem(task="embed", token_ids=ids) for ids in texts]
    for item, numbers in zip(items, build(tmp_path).run(items), strict=True):
        assert numbers == pytest.approx(pooled(by_transformers(model, "Bert", item), pooling), abs=CLOSE)


def test_a_dense_layer_follows_the_pooling(build, texts, tmp_path):
    model = make_tiny_encoder(tmp_path, "Bert", "Model")
    save_sentence_layout(tmp_path, dense=20)
    layer = {name: torch.from_numpy(array) for name, array in load_dense(tmp_path).items()}
    runner, item = build(tmp_path), RunnerItem(task="embed", token_ids=texts[2])
    mean = torch.from_numpy(pooled(by_transformers(model, "Bert", item), "mean"))
    expected = torch.tanh(mean @ layer["linear.weight"].T + layer["linear.bias"]).numpy()
    assert runner.description.embedding_size == 20
    assert runner.run([item])[0] == pytest.approx(expected, abs=CLOSE)


def load_dense(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "2_Dense" / "model.safetensors")


def test_a_decoder_is_embedded_with_by_its_last_token(build, texts, tmp_path):
    shape = {"vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    model = Qwen3Model(Qwen3Config(**shape, **heads, initializer_range=0.2, tie_word_embeddings=False)).eval()
    model.save_pretrained(tmp_path)
    save_word_pieces(tmp_path)
    save_sentence_layout(tmp_path, pooling="lasttoken")
    runner = build(tmp_path)
    items = [RunnerItem(task="embed", token_ids=ids) for ids in texts]
    items.append(RunnerItem(task="token_embed", token_ids=texts[4]))
    for numbers, item in zip(runner.run(items), items, strict=True):
        hidden = by_transformers(model, "Qwen3", item)
        assert numbers == pytest.approx(hidden[-1] if item.task == "embed" else hidden, abs=CLOSE)
    assert [runner.run([item])[0].tobytes() for item in items] == [row.tobytes() for row in runner.run(items)]


@pytest.mark.parametrize(
    ("settings", "least"), [({"dtype": "bfloat16"}, 0.998), ({"quantization": "int8-dynamic"}, 0.99)]
)
def test_fewer_bits_stay_close(settings, least, build, texts, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    items = [RunnerItem(task="embed", token_ids=ids) for ids in texts]
    for exact, close in zip(build(tmp_path).run(items), build(tmp_path, **settings).run(items), strict=True):
        assert exact @ close / np.linalg.norm(exact) / np.linalg.norm(close) > least


def test_the_description_says_what_the_folder_does(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    save_sentence_layout(tmp_path, prompts={"query": "q: "}, default_prompt_name="query", similarity_fn_name="dot")
    runner = build(tmp_path)
    description = runner.description
    assert description.tasks == ("embed", "token_embed")
    assert (description.embedding_size, description.normalizes, description.pooling) == (48, True, "mean")
    assert (description.prompts, description.default_prompt_name) == ({"query": "q: "}, "query")
    assert (description.similarity, runner.max_input_tokens, runner.vocab_size) == ("dot", 64, 120)


@pytest.mark.parametrize(
    ("changes", "activation"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"num_labels": 3}, "softmax"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
    ],
)
def test_the_activation_is_the_checkpoints(changes, activation, build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "ForSequenceClassification", id2label=None, **changes)
    description = build(tmp_path).description
    assert description.activation == activation
    assert ("score" in description.tasks) == (changes["num_labels"] == 1)
    assert description.labels == tuple(f"LABEL_{index}" for index in range(changes["num_labels"]))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (RunnerItem(task="embed", token_ids=[]), "item 0: there are no tokens"),
        (RunnerItem(task="embed", token_ids=[5] * 65), "65 tokens are more than the model's 64"),
        (RunnerItem(task="embed", token_ids=[120]), "120 is no token id"),
        (RunnerItem(task="embed", token_ids=[-1]), "-1 is no token id"),
        (RunnerItem(task="classify", token_ids=[5]), "task 'classify' is not one of this model's"),
    ],
)
def test_an_item_that_cannot_be_computed_is_refused(item, message, build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    with pytest.raises(InvalidParameter, match=message):
        build(tmp_path).run([item])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"id2label": {"1": "a"}}, "id2label"),
    ],
)
def test_what_is_not_supported_is_named(changes, message, build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    change_config(tmp_path, **changes)
    with pytest.raises((ModelLoadError, UnsupportedArchitecture), match=message):
        build(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "pooling cls, mean is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
        ("modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.CNN", "path": "1"}], "Transformer, CNN"),
        ("modules.json", [{"type": "a.Transformer", "path": "../b"}], "outside the folder"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "'query' is none of the prompts"),
    ],
)
def test_a_layout_that_is_not_supported_is_named(file, content, message, build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    save_sentence_layout(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=message):
        build(tmp_path)


def test_quantizations_of_decoders_are_refused(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    with pytest.raises(ConfigError, match="'int4' is not supported for encoders"):
        build(tmp_path, quantization="int4")


def test_the_choice_of_kernels_is_kept_in_the_cache_folder(build, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    build(tmp_path)
    (file,) = (tmp_path / "cache" / "products").glob("*.json")
    ratios = json.loads(file.read_text())
    assert any(name.endswith("linear 144x48") for name in ratios)
    file.write_text(json.dumps(dict.fromkeys(ratios, 2.0)))  # as if torch's were twice as fast
    build(tmp_path)
    again = json.loads(file.read_text())  # of a stack of layers whose products are others now, there is another time
    assert {again[name] for name in ratios} == {2.0}
    file.write_text("{")
    build(tmp_path)
    assert any(name.endswith("linear 144x48") for name in json.loads(file.read_text()))
