import json

import pytest

from rayinfer.config import engine_config
from rayinfer.errors import ConfigError
from rayinfer.models.generation_config import default_sampling_params

PUBLISHED = {"temperature": 0.6, "top_p": 0.95, "eos_token_id": 2}


@pytest.fixture
def model(tmp_path):
    return folder_with(tmp_path / "model", json.dumps(PUBLISHED))


def folder_with(folder, content):
    folder.mkdir()
    (folder / "generation_config.json").write_text(content)
    return folder


def defaults(folder, **settings):
    return default_sampling_params(engine_config(model=str(folder), **settings), folder)


def test_the_models_own_file_gives_the_defaults(model):
    assert defaults(model) == defaults(model, generation_config="auto") == {"temperature": 0.6, "top_p": 0.95}


def test_a_model_without_the_file_has_none(tmp_path):
    assert defaults(tmp_path) == {}


def test_none_leaves_the_file_unread(tmp_path):
    assert defaults(folder_with(tmp_path / "broken", "{"), generation_config="none") == {}


def test_another_folder_replaces_the_models_file(model, tmp_path):
    other = folder_with(tmp_path / "other", '{"top_k": 7}')
    assert defaults(model, generation_config=str(other)) == {"top_k": 7}


def test_a_relative_folder_is_that_of_the_process_that_reads_the_setting(model, tmp_path, monkeypatch):
    folder_with(tmp_path / "other", '{"top_k": 7}')
    monkeypatch.chdir(tmp_path)
    config = engine_config(model=str(model), generation_config="./other")
    monkeypatch.chdir("/")
    assert default_sampling_params(config, model) == {"top_k": 7}


def test_overrides_replace_single_keys_and_null_removes_one(model):
    overrides = {"temperature": 0.1, "top_p": None, "max_new_tokens": 9}
    assert defaults(model, override_generation_config=overrides) == {"temperature": 0.1, "max_tokens": 9}


def test_an_override_stands_for_a_value_of_the_file_that_cannot_be(tmp_path):
    folder = folder_with(tmp_path / "wrong", '{"temperature": 9}')
    assert defaults(folder, override_generation_config={"temperature": 1.0}) == {"temperature": 1.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"top_p": 7}', r"wrong/generation_config\.json: top_p must lie in \(0, 1\], got 7"),
        ("{", r"wrong/generation_config\.json: not readable as JSON"),
        ("[]", r"wrong/generation_config\.json: not a JSON object"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(tmp_path, content, said):
    with pytest.raises(ConfigError, match=said):
        defaults(folder_with(tmp_path / "wrong", content))


def test_a_folder_without_the_file_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match=r"auto, none or a folder: .*missing/generation_config\.json does not exist"):
        defaults(model, generation_config=str(tmp_path / "missing"))
