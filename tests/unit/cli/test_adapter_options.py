"""LoRA adapters on the command line and in settings: vLLM's forms, and mistakes that are refused before the start."""

import json

import pytest

from rayinfer.errors import ConfigError
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.cli.options.adapter_options import models_with_adapters, repeated


@pytest.fixture
def folder(tmp_path):
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("")
    return str(tmp_path)


@pytest.mark.parametrize("option", ["--lora-modules", "--adapters"])
def test_several_adapters_may_follow_one_option(option):
    written = repeated(["m", option, "a=x", '{"name": "b"}', "--port", "1=2", option, "c=z", "other"])
    values = [option, "a=x", option, '{"name": "b"}', "--port", "1=2", option, "c=z", "other"]
    assert written == ["m", *values]


def test_adapters_belong_to_the_only_model_or_to_the_one_they_name(folder):
    as_json = json.dumps({"name": "b", "path": folder, "base_model_name": "m"})
    both = {"lora_modules": [f"a={folder}", as_json], "lora_folder": "/watched", "batches_folder": None}
    assert models_with_adapters(["m"], both) == {
        "m": {"lora_modules": {"a": folder, "b": folder}, "lora_folder": "/watched"}
    }
    assert both == {"batches_folder": None}
    assert models_with_adapters(["n", "m"], {"lora_modules": [as_json]}) == {"m": {"lora_modules": {"b": folder}}}


@pytest.mark.parametrize(
    "wrong", ["a", "a=", "=x", "a={folder}/no", "{{", "[]", '{{"name": "a"}}', '{{"name": "a", "path": 1}}']
)
def test_what_is_no_adapter_is_refused(folder, wrong):
    with pytest.raises(ConfigError):
        models_with_adapters(["m"], {"lora_modules": [wrong.format(folder=folder)]})


def test_one_of_several_models_must_be_named(folder):
    for modules, watched in (([f"a={folder}"], None), ([], "/watched")):
        with pytest.raises(ConfigError, match="several models"):
            models_with_adapters(["m", "n"], {"lora_modules": modules, "lora_folder": watched})
    with pytest.raises(ConfigError, match="two adapters"):
        models_with_adapters(["m"], {"lora_modules": [f"a={folder}", f"a={folder}"]})


@pytest.mark.parametrize(
    "settings",
    [
        {"lora_modules": {"a": "/x"}},  # without enable_lora
        {"lora_folder": "/x"},
        {"enable_lora": True, "lora_modules": {"m": "/x"}},  # the model's own name
        {"enable_lora": True, "lora_modules": {"a b": "/x"}},
        {"enable_lora": True, "lora_modules": ["a"]},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError):
        llm_app_args({"models": [{"model": "smollm2-135m", "name": "m", **settings}]})


def test_adapters_say_nothing_to_engines():
    model = {"model": "smollm2-135m", "name": "m", "enable_lora": True, "lora_modules": {"a": "/x"}}
    (args,) = llm_app_args({"models": [model]}).models
    assert not {"lora_modules", "lora_folder"} & set(args.engine_config().model_dump())
    assert args.adapter_folders("m").modules == {"a": "/x"}
