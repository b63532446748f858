import json
import pickle

import pytest

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer_deployments.app_args import ModelArgs, llm_app_args


def test_a_model_takes_every_setting_of_an_engine():
    args = llm_app_args({"models": [{"model": "m", "block_size": 32, "max_num_seqs": 7, "num_replicas": 2}]})
    assert args.models[0].engine_config() == EngineConfig(model="m", block_size=32, max_num_seqs=7)
    assert set(EngineConfig.model_fields) < set(ModelArgs.model_fields)


def test_roles_may_be_text_and_have_engines_exchange_blocks():
    model = ModelArgs(model="m", num_replicas=3, roles="prefill=1,decode=2", kv_store_gib=1)
    assert (model.roles.prefill, model.roles.decode, model.roles.min_prompt_tokens) == (1, 2, 1024)
    assert model.engine_config().kv_transfer
    assert not ModelArgs(model="m", kv_store_gib=1).engine_config().kv_transfer


def test_what_is_left_out_or_null_is_still_open_where_the_engine_is_built():
    names = ("max_num_seqs", "max_num_batched_tokens", "memory_fraction", "max_cudagraph_capture_size")
    for settings in ({}, dict.fromkeys(names)):
        config = llm_app_args({"models": [{"model": "m"} | settings]}).models[0].engine_config()
        to_a_rank = EngineConfig(**json.loads(json.dumps(config.model_dump(mode="json"))))
        to_an_actor = pickle.loads(pickle.dumps(config))
        for each in (config, to_a_rank, to_an_actor):
            assert [getattr(each, name) for name in names] == [None] * 4


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"models": [{"model": "m", "max_num_batched_tokens": 0}]}, r"models\.0\.max_num_batched_tokens: .*, got 0"),
        ({"models": [{"model": "m", "max_num_seq": 3}]}, r"models\.0\.max_num_seq: Extra inputs are not permitted"),
        ({"models": [{"model": "m"}], "max_waiting": 3}, r"max_waiting: Extra inputs are not permitted"),
        ({"models": [{"model": "m", "num_replicas": 0}]}, r"models\.0\.num_replicas: .* greater than or equal to 1"),
        ({"models": []}, r"models: .* at least 1 item"),
        ({"models": [{"model": "a/m"}, {"model": "a/m"}]}, r"a name of its own, got twice: a/m"),
        ({"models": [{"model": "simple"}], "with_examples": True}, r"with_examples has a model 'simple' of its own"),
        (
            {"models": [{"model": "m"}], "grpc_port": 7, "listen_port": 7},
            r"grpc_port and listen_port must differ, got 7",
        ),
        ({"models": [{"model": "m", "block_size": 7}]}, r"models\.0\.block_size: "),
        (
            {"models": [{"model": "m"}], "num_routers": 2, "router_on_every_node": True},
            "router_on_every_node and num_r",
        ),
        (
            {"models": [{"model": "m", "pipeline_parallel_size": 3, "node_labels": [{"a": "b"}] * 2}]},
            "one for each of the 3 stages or ranks that are placed, got 2",
        ),
        ({"models": [{"model": "m", "num_replicas": 2, "roles": "prefill=1,decode=1"}]}, "roles need kv_store_gib"),
        (
            {"models": [{"model": "m", "kv_store_gib": 1, "roles": "prefill=1,decode=1"}]},
            "roles need two engines or more",
        ),
        (
            {"models": [{"model": "m", "kv_store_gib": 1, "num_replicas": 2, "roles": "decode=1"}]},
            "prefill: Field required",
        ),
        ({"models": [{"model": "m", "placement_group_strategy": "spread"}]}, r"placement_group_strategy: .*'spread'"),
        (
            {"models": [{"model": "m"}], "otlp_traces_endpoint": "host:4317"},
            r"otlp_traces_endpoint must be a URL as .*, got 'host:4317'",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        llm_app_args(settings)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"model": "smollm2-135m"}, "smollm2-135m"),
        ({"model": "organization/model"}, "organization/model"),
        ({"model": "/models/llama"}, "llama"),
        ({"model": "./model.gguf"}, "model"),
        ({"model": "/models/llama", "name": "mine"}, "mine"),
    ],
)
def test_clients_call_a_model_by_its_name_or_by_its_source(settings, name):
    assert llm_app_args({"models": [settings]}).models[0].served_name == name


def model_args(**settings):
    return llm_app_args({"models": [{"model": "m"} | settings]}).models[0]


def test_the_ranks_of_an_engine_share_what_ray_sets_aside_for_one():
    model = model_args(tensor_parallel_size=2, pipeline_parallel_size=2)
    assert (model.num_ranks, model.num_cpus_per_rank) == (4, 0.125)
    assert model_args().num_cpus_per_rank == 0.5
    assert model_args(tensor_parallel_size=2, num_cpus=1.5).num_cpus_per_rank == 1.5


@pytest.mark.parametrize("num_gpus", [0.5, 2])
def test_ranks_have_a_gpu_each_or_none(num_gpus):
    assert model_args(num_gpus=num_gpus).num_gpus == num_gpus
    assert model_args(num_gpus=1, tensor_parallel_size=2).num_gpus == 1
    with pytest.raises(
        ConfigError, match=f"num_gpus must be 1 for each of the 2 ranks of an engine, or 0, got {num_gpus}"
    ):
        model_args(num_gpus=num_gpus, tensor_parallel_size=2)


def test_each_model_has_its_own_defaults_of_requests():
    overrides = [{"temperature": 0.2}, {"top_k": 5}]
    models = [{"model": f"m{k}", "override_generation_config": each} for k, each in enumerate(overrides)]
    args = llm_app_args({"models": [*models, {"model": "m2", "generation_config": "none"}]})
    configs = [model.engine_config() for model in args.models]
    assert [config.override_generation_config for config in configs] == [*overrides, {}]
    assert [config.generation_config for config in configs] == ["auto", "auto", "none"]
    assert [EngineConfig(**json.loads(json.dumps(config.model_dump(mode="json")))) for config in configs] == configs


def test_limits_of_requests_are_settings_and_refused_by_name():
    args = llm_app_args({"models": [{"model": "smollm2-135m"}], "request_limits": {"max_n": 4, "max_logprobs": 100}})
    assert (args.request_limits.max_n, args.request_limits.max_logprobs, args.request_limits.max_prompts) == (
        4,
        100,
        1024,
    )
    for wrong in ({"max_n": 0}, {"max_logprobs": 10**6}, {"max_choices": "x"}, {"max_best": 1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            llm_app_args({"models": [{"model": "smollm2-135m"}], "request_limits": wrong})
