from pathlib import Path

import pytest
import yaml

import rayinfer_deployments
from rayinfer_deployments.config_check import mistakes_in

CONFIGS = sorted((Path(rayinfer_deployments.__file__).parent / "configs").glob("*.yaml"))


def config(**changes):
    application = {
        "name": "rayinfer",
        "import_path": "rayinfer_deployments.applications:build_llm_app",
        "args": {"models": [{"model": "smollm2-135m"}]},
        "deployments": [{"name": "router", "user_config": {"ageing_s": 1.0}}],
    }
    return {"http_options": {"port": 8000}, "applications": [application | changes]}


@pytest.fixture
def check(tmp_path):
    def check_content(content):
        file = tmp_path / "config.yaml"
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return mistakes_in(file)

    return check_content


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_config_that_is_shipped_is_right(file):
    assert mistakes_in(file) == []


def test_there_are_configs():
    assert {file.stem for file in CONFIGS} >= {"cpu", "gpu", "two-models", "throughput"}


def test_a_right_config_has_no_mistakes(check):
    assert check(config()) == []


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (config() | {"proxy_place": "HeadOnly"}, "proxy_place"),
        (config() | {"http_options": {"prot": 8000}}, "http_options.prot"),
        (config() | {"logging_config": {"level": "INFO"}}, "logging_config.level"),
        (config(arguments={}), "applications.0.arguments"),
        (config(deployments=[{"name": "router", "replicas": 2}]), "applications.0.deployments.0.replicas"),
        (
            config(deployments=[{"name": "router", "ray_actor_options": {"cpus": 2}}]),
            "applications.0.deployments.0.ray_actor_options.cpus",
        ),
        (config(args={"models": [{"model": "m", "blocks": 1}]}), "applications.0.args.models.0.blocks"),
        (config(args={"models": [{"model": "m"}], "routers": 2}), "applications.0.args.routers"),
        (
            config(args={"models": [{"model": "m", "override_generation_config": {"top_p": 7}}]}),
            "applications.0.args.models.0.override_generation_config",
        ),
        (
            config(args={"models": [{"model": "m", "generation_config": 5}]}),
            "applications.0.args.models.0.generation_config",
        ),
        (config(args={"models": [{"model": "m", "max_num_seqs": 0}]}), "applications.0.args.models.0.max_num_seqs"),
        (
            config(deployments=[{"name": "router", "user_config": {"max_wating_requests": 2}}]),
            "applications.0.deployments.0.user_config.max_wating_requests",
        ),
        (
            config(deployments=[{"name": "router", "user_config": {"tenants": {"a": {"wieght": 2}}}}]),
            "applications.0.deployments.0.user_config.tenants.a.wieght",
        ),
        (config(deployments=[{"name": "roter"}]), "applications.0.deployments.0.name"),
        (
            config(deployments=[{"name": "engine-0-smollm2-135m", "user_config": {}}]),
            "applications.0.deployments.0.user_config",
        ),
        ({"applications": [{"name": "other", "import_path": "no-colon"}]}, "applications.0.import_path"),
    ],
)
def test_unknown_names_and_invalid_values_are_reported_with_their_path(check, content, key):
    (mistake,) = check(content)
    assert mistake.startswith(f"{key}: ")
    assert "\n" not in mistake


@pytest.mark.parametrize("written", [":", "."])
def test_our_application_is_known_however_serve_lets_it_be_written(check, written):
    wrong = {"models": [{"model": "smollm2-135m", "num_replica": 2}]}
    path = f"rayinfer_deployments.applications{written}build_llm_app"
    (mistake,) = check(config(import_path=path, args=wrong))
    assert "num_replica" in mistake


def test_what_is_no_config_at_all_is_said(check):
    assert check("a: [") == [check("a: [")[0]]
    assert check("a: [")[0].startswith("no YAML: ")
    assert check("just text") == ["no Serve config: it holds no names"]


def test_applications_of_others_are_checked_as_far_as_serve_knows_them(check):
    assert check({"applications": [{"name": "other", "import_path": "their.module:app", "args": {"any": 1}}]}) == []
