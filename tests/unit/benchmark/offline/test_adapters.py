import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from rayinfer.benchmark.offline.adapters import run_adapter_benchmark
from rayinfer.benchmark.offline.random_adapters import save_random_adapters
from rayinfer.errors import ConfigError
from support.fakes.fake_peers import make_setup, make_vllm
from support.tiny_models.tiny_checkpoints import make_tiny_llama

SIZES = {"rank": 2, "num_streams": 3, "num_tokens": 4, "num_rounds": 2, "command": "command"}
SETTINGS = {"num_kv_blocks": 64, "dtype": "float32", "num_threads": 1}


def setup_of(folder, **programs):
    return replace(make_setup(folder, **programs), model_folder=make_tiny_llama(folder))


def test_batches_with_adapters_are_compared_with_the_base_alone(tmp_path):
    setup = setup_of(tmp_path)
    report = run_adapter_benchmark(
        str(tmp_path), SETTINGS, setup, targets=["qv", "all"], numbers=[1, 3], **SIZES, log=lambda text: None
    )
    assert [(each.targets, each.num_adapters) for each in report.results] == [
        ("qv", 1),
        ("qv", 3),
        ("all", 1),
        ("all", 3),
    ]
    assert {each.system for each in report.results} == {"rayinfer"}
    assert report.vllm == "it is not installed"
    for result in report.results:
        least, most = result.range
        assert least <= result.share <= most
        assert 0 < result.bound <= 1
    first, second, third, fourth = (result.num_bytes for result in report.results)
    assert second == 3 * first
    assert fourth == 3 * third > 3 * first
    assert len(report.tables()[0].rows) == 4


def test_vllm_runs_the_same_batches_in_turns(tmp_path):
    setup, steps = setup_of(tmp_path, vllm=make_vllm(tmp_path / "peer")), []
    report = run_adapter_benchmark(
        str(tmp_path), SETTINGS, setup, targets=["qv"], numbers=[1, 3], **SIZES, log=steps.append
    )
    assert [(each.system, each.num_adapters) for each in report.results] == [
        ("rayinfer", 1),
        ("rayinfer", 3),
        ("vllm", 1),
        ("vllm", 3),
    ]
    one, three = report.results[2:]
    assert three.share < one.share < 0.6  # it takes 10 ms without adapters, 30 with one, and 70 with three
    assert steps[1:3] == ["round 0 of 2: rayinfer, none 0", "round 0 of 2: vllm, none 0"]
    ratios = report.tables()[1]
    assert ratios.heads[-1] == "rayinfer / vllm 9.9"
    expected = round(report.results[1].tok_s / three.tok_s, 2)
    assert [row[:2] for row in ratios.rows] == [("none", 0), ("qv", 1), ("qv", 3)]
    assert ratios.rows[-1] == ("qv", 3, expected)


def test_random_adapters_differ_and_have_the_asked_layers(tmp_path):
    saved = save_random_adapters(tmp_path / "adapters", make_tiny_llama(tmp_path / "model"), ("q_proj",), 2, 2)
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in saved.folders)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert {each.split(".")[6] for each in first} == {"q_proj"}
    assert not first[name].equal(second[name])
    assert json.loads((saved.folders[0] / "adapter_config.json").read_text())["r"] == 2
    assert saved.num_bytes == sum(tensor.nbytes for tensor in first.values())


def test_unknown_targets_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"targets must be some of qv,all, got q$"):
        run_adapter_benchmark(
            "none", {}, make_setup(tmp_path), targets=["q"], numbers=[1], **SIZES, log=lambda text: None
        )
