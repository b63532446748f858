import pytest

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer_deployments.app_args import ModelArgs, llm_app_args


def test_a_model_takes_every_setting_of_an_engine():
    args = llm_app_args({"models": [{"model": "m", "block_size": 32, "max_num_seqs": 7, "num_replicas": 2}]})
    assert args.models[0].engine_config() == EngineConfig(model="m", block_size=32, max_num_seqs=7)
    assert set(EngineConfig.model_fields) < set(ModelArgs.model_fields)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"models": [{"model": "m", "max_num_seq": 3}]}, r"models\.0\.max_num_seq: Extra inputs are not permitted"),
        ({"models": [{"model": "m"}], "max_waiting": 3}, r"max_waiting: Extra inputs are not permitted"),
        ({"models": [{"model": "m", "num_replicas": 0}]}, r"models\.0\.num_replicas: .* greater than or equal to 1"),
        ({"models": []}, r"models: .* at least 1 item"),
        ({"models": [{"model": "a/m"}, {"model": "a/m"}]}, r"a name of its own, got twice: a/m"),
        ({"models": [{"model": "m", "block_size": 7}]}, r"models\.0\.block_size: "),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        llm_app_args(settings)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"model": "smollm2-135m"}, "smollm2-135m"),
        ({"model": "organisation/model"}, "organisation/model"),
        ({"model": "/models/llama"}, "llama"),
        ({"model": "./model.gguf"}, "model"),
        ({"model": "/models/llama", "name": "mine"}, "mine"),
    ],
)
def test_clients_call_a_model_by_its_name_or_by_its_source(settings, name):
    assert llm_app_args({"models": [settings]}).models[0].served_name == name
