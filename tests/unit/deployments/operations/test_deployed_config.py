import copy

import pytest

from rayinfer.errors import ConfigError, RayinferError
from rayinfer.routing.limits import RouterLimits
from rayinfer_deployments.applications import engine_deployment_name
from rayinfer_deployments.config_check import OUR_BUILDER
from rayinfer_deployments.operations.deployed_config import (
    args_of,
    changed,
    find_application,
    original_args_of,
    schema_with,
)

CONFIG = {
    "name": "a",
    "import_path": OUR_BUILDER,
    "args": {
        "models": [{"model": "smollm2-135m", "name": "m"}, {"model": "./b", "autoscaling": {"max_replicas": 3}}],
        "limits": {"ageing_s": 2.0},
    },
    "deployments": [
        {"name": "router", "user_config": {"max_waiting_requests": 9}, "num_replicas": 2},
        {"name": "engine-0-m", "num_replicas": 4, "max_ongoing_requests": 7},
    ],
}


def details(**imports):
    """Describe applications by what their configs import; None for one without a config."""
    return {
        "applications": {
            name: {"deployed_app_config": path and {"import_path": path}} for name, path in imports.items()
        }
    }


def test_the_only_application_of_ours_is_found_beside_others():
    assert find_application(details(ours=OUR_BUILDER, theirs="x:y", program=None), None) == "ours"
    assert find_application(details(a=OUR_BUILDER, b=OUR_BUILDER.replace(":", ".")), "b") == "b"


@pytest.mark.parametrize(
    ("applications", "name", "message"),
    [
        ({"a": OUR_BUILDER, "b": OUR_BUILDER}, None, r"several .* --application \(there are: a, b\)"),
        ({"theirs": "x:y"}, None, r"no rayinfer service is deployed from a file \(applications: theirs\)"),
        ({}, None, r"no rayinfer service .*none"),
        ({"a": OUR_BUILDER}, "z", r"there is no application 'z' \(there are: a\)"),
        ({"theirs": "x:y"}, "theirs", "not rayinfer's, its import_path is 'x:y'"),
        ({"program": None}, "program", "a program has deployed it"),
    ],
)
def test_an_application_that_is_not_clear_or_not_ours_is_refused(applications, name, message):
    with pytest.raises(RayinferError, match=message):
        find_application(details(**applications), name)


def test_settings_are_those_of_args_with_what_stands_under_deployments():
    args, original = args_of(CONFIG), original_args_of(CONFIG)
    assert (args.limits, args.num_routers) == (RouterLimits(max_waiting_requests=9), 2)
    assert [model.num_replicas for model in args.models] == [4, 1]
    assert (original.limits, original.models[0].num_replicas) == (RouterLimits(ageing_s=2.0), 1)


def test_limits_and_numbers_change_under_deployments_alone_and_nothing_else_is_touched():
    before = args_of(CONFIG)
    models = [before.models[0].model_copy(update={"num_replicas": 2}), before.models[1]]
    after = before.model_copy(update={"limits": RouterLimits(ageing_s=5.0), "models": models})
    untouched = copy.deepcopy(CONFIG)
    new = changed(CONFIG, before, after)
    assert untouched == CONFIG
    assert new["args"] == CONFIG["args"]
    assert new["deployments"][0]["user_config"]["ageing_s"] == 5.0
    assert new["deployments"][1] == {"name": "engine-0-m", "num_replicas": 2, "max_ongoing_requests": 7}
    assert args_of(new) == after


def test_a_config_without_overrides_gets_one():
    config = {name: value for name, value in CONFIG.items() if name != "deployments"}
    before = args_of(config)
    new = changed(config, before, before.model_copy(update={"limits": RouterLimits(ageing_s=5.0)}))
    assert [each["name"] for each in new["deployments"]] == ["router"]


def test_what_engines_are_made_from_changes_under_args():
    before = args_of(CONFIG)
    models = [before.models[0].model_copy(update={"revision": "r"}), before.models[1]]
    new = changed(CONFIG, before, before.model_copy(update={"models": models}))
    assert new["args"]["models"] == [CONFIG["args"]["models"][0] | {"revision": "r"}, CONFIG["args"]["models"][1]]
    assert new["deployments"] == CONFIG["deployments"]


def test_other_bounds_of_a_model_that_follows_its_load_are_refused():
    before = args_of(CONFIG)
    bounds = before.models[1].autoscaling.model_copy(update={"max_replicas": 5})
    models = [before.models[0], before.models[1].model_copy(update={"autoscaling": bounds})]
    with pytest.raises(ConfigError, match="within the bounds of its file"):
        changed(CONFIG, before, before.model_copy(update={"models": models}))


def test_other_applications_and_the_target_capacity_stay_as_they_are():
    applications = details(a=OUR_BUILDER, theirs="x:y", program=None) | {"target_capacity": 50.0}
    schema = schema_with(applications, "a", lambda config: dict(config) | {"new": 1})
    assert schema == {
        "applications": [{"import_path": OUR_BUILDER, "new": 1}, {"import_path": "x:y"}],
        "target_capacity": 50.0,
    }
    with pytest.raises(RayinferError, match="not deployed from a file any more"):
        schema_with(applications, "program", dict)


def test_the_number_of_engines_that_follow_their_load_is_not_read_from_a_file():
    engines = {"name": engine_deployment_name(1, args_of(CONFIG).models[1]), "num_replicas": 7}
    config = CONFIG | {"deployments": [engines]}
    assert args_of(config).models[1] == original_args_of(config).models[1]
