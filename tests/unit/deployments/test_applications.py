import json
import subprocess
import sys

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
