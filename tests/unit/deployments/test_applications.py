import json
import subprocess
import sys

import pytest

from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_llm_app

BUILD = """
import json, sys
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_llm_app
build_llm_app(llm_app_args(json.loads(sys.argv[1])))
print("torch" in sys.modules)
"""


def test_the_graph_is_built_without_torch_and_without_the_models_files():
    settings = {"models": [{"model": "/nowhere/a", "num_gpus": 1}, {"model": "organisation/b", "num_replicas": 3}]}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, json.dumps(settings)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def versions(**changes):
    model = {"model": "/nowhere/a", "name": "a"} | changes.pop("model", {})
    application = build_llm_app(llm_app_args({"models": [model, {"model": "/nowhere/b"}]} | changes))
    router = application._bound_deployment
    engines = [model.engines._bound_deployment for model in router.init_args[0]]
    return [deployment.version for deployment in (router, *engines)]


@pytest.mark.parametrize(
    "change",
    [
        {"limits": {"max_waiting_requests": 7}},
        {"num_routers": 3},
        {"model": {"num_replicas": 4}},
        {"model": {"surge_percent": 0}},
    ],
)
def test_a_change_for_which_nothing_has_to_be_built_anew_keeps_every_version(change):
    assert versions(**change) == versions()


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"max_body_bytes": 4096}, [True, False, False]),
        ({"model": {"max_num_seqs": 3}}, [False, True, False]),
        ({"model": {"revision": "2"}}, [False, True, False]),
        ({"model": {"model": "/nowhere/c"}}, [True, True, False]),
    ],
)
def test_a_change_gives_those_another_version_that_are_made_from_it(change, changed):
    pairs = zip(versions(**change), versions(), strict=True)
    assert [new != old for new, old in pairs] == changed


def test_two_models_of_the_same_settings_have_engines_of_their_own():
    assert len(set(versions())) == 3
