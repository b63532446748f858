import json
import shlex
from dataclasses import replace

import pytest

from rayinfer.outputs import EngineStats
from rayinfer.predictions import PredictorDescription
from rayinfer.protocols import ModelDescription, ServiceStatus
from rayinfer.routing.limits import RouterLimits
from rayinfer_deployments.cli.start_lines import capacity_lines, default_lines, example_command
from rayinfer_deployments.operations.replica_calls import have_weights, in_plain_types
from rayinfer_deployments.router.router import RouterReport

SIZES = {"name": "m", "max_model_len": 4096, "vocab_size": 3, "created": 1}
ON_A_CPU = ModelDescription(
    **SIZES,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    kv_blocks_total=2000,
    device="2 CPU threads",
    sizes_from="defaults of a CPU",
)
ON_A_GPU = ModelDescription(
    **SIZES,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    kv_blocks_total=9,
    max_cudagraph_capture_size=256,
    async_scheduling=True,
)


def test_engines_have_other_weights_once_each_replica_of_them_says_so():
    assert have_weights({"a", "b"}, [("a", 2), ("b", 2), ("c", 1)], 2)
    assert not have_weights({"a", "b"}, [("a", 2), ("b", 1)], 2)  # one that was added with the old ones
    assert not have_weights({"a", "b"}, [("a", 2)], 2)  # one that says nothing
    assert not have_weights(set(), [("a", 2)], 2)


def report_of(router, **descriptions):
    stats = {name: EngineStats(num_running=3) for name in descriptions}
    status = ServiceStatus(ready=True, engines=stats, descriptions=descriptions)
    return RouterReport(router=router, limits=RouterLimits(), models={"tiny": status}, key_error="line 2")


def test_a_report_says_of_each_engine_how_it_is_and_what_sizes_it_has():
    (model,) = json.loads(json.dumps(in_plain_types(report_of("r", a=ON_A_CPU))))["models"]
    (engine,) = model["engines"]
    assert (engine["name"], engine["num_running"], engine["capacity"]) == ("a", 3, ON_A_CPU.capacity)


def test_capacities_are_listed_once_for_each_model_and_capacity():
    reports = [report_of("r", a=ON_A_CPU, b=ON_A_CPU), report_of("s", a=ON_A_CPU, c=ON_A_GPU)]
    assert capacity_lines({"routers": [in_plain_types(report) for report in reports]}) == [
        "engine of tiny: max_num_seqs 64, max_num_batched_tokens 512, max_model_len 4,096,"
        " 2,000 KV blocks of 16 tokens (32,000 in all), no async scheduling, no CUDA graphs, 2 CPU threads;"
        " defaults of a CPU",
        "engine of tiny: max_num_seqs 256, max_num_batched_tokens 8,192, max_model_len 4,096,"
        " 9 KV blocks of 16 tokens (144 in all), async scheduling, CUDA graphs for up to 256 requests",
    ]
    assert capacity_lines({"routers": [in_plain_types(report_of("r"))]}) == []


def test_default_sampling_parameters_are_listed_once_for_each_model():
    drawn = replace(ON_A_CPU, default_sampling_params={"temperature": 0.2, "top_p": 0.5})
    reports = [report_of("r", a=drawn, b=drawn), report_of("s", a=drawn)]
    status = json.loads(json.dumps({"routers": [in_plain_types(report) for report in reports]}))
    assert default_lines(status) == ["default sampling parameters of tiny: temperature 0.2, top_p 0.5"]
    assert default_lines({"routers": [in_plain_types(report_of("r", a=ON_A_CPU))]}) == [
        "default sampling parameters of tiny: none"
    ]


def test_a_predictor_has_its_tasks_and_no_sampling_parameters():
    embedder = replace(ON_A_CPU, predictor=PredictorDescription(tasks=("embed", "token_embed")))
    images = replace(ON_A_CPU, predictor=PredictorDescription(tasks=("classify",), image_size=224))
    assert [in_plain_types(report_of("r", a=each))["models"][0]["tasks"] for each in (ON_A_CPU, embedder, images)] == [
        ["generate"],
        ["embed", "token_embed"],
        ["classify_images"],
    ]
    assert default_lines({"routers": [in_plain_types(report_of("r", a=embedder))]}) == []
    assert "images of 224 x 224 pixels" in images.capacity


@pytest.mark.parametrize(
    ("tasks", "path"),
    [
        ([], "/v1/chat/completions"),
        (["generate"], "/v1/chat/completions"),
        (["embed", "token_embed"], "/v1/embeddings"),
        (["classify"], "/v1/classify"),
        (["classify_images"], "/v1/images/classify?model=tiny"),
    ],
)
def test_the_example_asks_a_model_for_what_it_does(tasks, path):
    command = example_command("http://h:1", "tiny", tasks, has_keys=True, has_one_model=False)
    words = shlex.split(command)
    assert (words[0], words[1]) == ("curl", f"http://h:1{path}")
    assert "Authorization: Bearer $RAYINFER_API_KEY" in words
