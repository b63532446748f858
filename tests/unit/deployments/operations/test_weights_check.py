import json

import pytest

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer_deployments.app_args import ModelArgs
from rayinfer_deployments.operations.weights_check import check_weights_fit
from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for seed, name in enumerate(("served", "fitting")):
        folder = tmp_path_factory.mktemp(name)
        made[name] = make_tiny_llama(folder, seed=seed)
    return made


def served(folders, **settings):
    return ModelArgs(model=str(folders["served"]), name="m", **settings)


def changed(folder, tmp_path, **fields):
    """Copy a model's folder, with other fields in its config.json."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    return str(tmp_path)


def test_other_weights_of_the_same_shape_fit(folders):
    check_weights_fit(served(folders), str(folders["fitting"]))


def test_a_larger_model_with_the_same_tokens_fits(folders, tmp_path):
    check_weights_fit(served(folders), changed(folders["fitting"], tmp_path, max_position_embeddings=1024))


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"vocab_size": 400}, {}, "a vocabulary of 400 tokens, 'm' has 384"),
        ({"max_position_embeddings": 256}, {}, "has a context of 256 tokens, 'm' needs 512"),
        ({"max_position_embeddings": 256}, {"max_model_len": 300}, "'m' needs 300"),
    ],
)
def test_weights_that_would_break_open_streams_are_refused(folders, tmp_path, fields, settings, message):
    with pytest.raises(ConfigError, match=message):
        check_weights_fit(served(folders, **settings), changed(folders["fitting"], tmp_path, **fields))


def test_a_setting_that_asks_for_less_lets_shorter_weights_in(folders, tmp_path):
    check_weights_fit(
        served(folders, max_model_len=200), changed(folders["fitting"], tmp_path, max_position_embeddings=256)
    )


def test_other_tokens_are_refused_whatever_the_weights(folders, tmp_path):
    source = changed(folders["fitting"], tmp_path)
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text() + "\n")
    with pytest.raises(ConfigError, match="is not the tokenizer of 'm'"):
        check_weights_fit(served(folders), source)


def test_routers_go_on_with_the_tokenizer_they_have(folders):
    """After a change of weights `model` and `tokenizer` differ, and the tokenizer's is the one that counts."""
    moved = served(folders, tokenizer=str(folders["served"])).model_copy(update={"model": str(folders["fitting"])})
    check_weights_fit(moved, str(folders["served"]))


def test_a_source_that_does_not_exist_is_refused(folders, tmp_path):
    with pytest.raises(ModelLoadError):
        check_weights_fit(served(folders), str(tmp_path / "nowhere"))


def test_weights_with_a_wrong_generation_config_are_refused(folders, tmp_path):
    source = changed(folders["fitting"], tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": -1}')
    with pytest.raises(ConfigError, match=r"generation_config\.json: temperature must lie in \[0, 2\], got -1"):
        check_weights_fit(served(folders), source)
    check_weights_fit(served(folders, generation_config="none"), source)
