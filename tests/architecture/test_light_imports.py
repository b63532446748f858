import json
import subprocess
import sys

import pytest

from rayinfer_deployments.cluster.head_node_processes import IDLE_AGENT as IDLE_AGENT_COMMAND
from support.architecture.floors import TORCH_FREE_MODULES, TORCH_FREE_ROOMS
from support.architecture.sources import find_sources, is_within
from support.tiny_models.tiny_checkpoints import make_tiny_llama

# Imports each module in turn and says which was the first to bring torch along.
IMPORT_ALL = """
import importlib, json, sys
failures = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError as error:
        failures[name] = str(error)
    if "torch" in sys.modules:
        failures[name] = "loads torch"
        break
print(json.dumps(failures))
"""


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("room", TORCH_FREE_ROOMS)
def test_each_room_without_torch_exists(room):
    assert [source.module for source in find_sources() if is_within(source.module, room)]


def test_servers_routing_and_tokenization_load_no_torch():
    in_rooms = [
        source.module for source in find_sources() if any(is_within(source.module, room) for room in TORCH_FREE_ROOMS)
    ]
    assert json.loads(run_python(IMPORT_ALL, json.dumps([*TORCH_FREE_MODULES, *in_rooms]))) == {}


def test_sampling_params_and_clients_come_from_the_package_without_torch():
    names = "AsyncInferenceClient, InferenceClient, RequestOutput, SamplingParams"
    code = f"import sys; from rayinfer import {names}; print('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_finding_a_model_that_is_there_loads_neither_numpy_nor_gguf(tmp_path):
    code = (
        "import sys; from rayinfer.models.checkpoints.sources import resolve_model; resolve_model(sys.argv[1]);"
        "import rayinfer.models.generation_config; print(sorted({'numpy', 'gguf'} & set(sys.modules)))"
    )
    assert run_python(code, str(make_tiny_llama(tmp_path / "model"))) == "[]"


# Run as raylet runs it: Ray starts no worker before, so each import would be waited for.
IDLE_AGENT = """
import sys
code = compile(open(sys.argv[1]).read(), "idle_agent", "exec")
exec(code, {"__name__": "idle_agent"})
print(sorted({"asyncio", "logging", "pathlib", "ray", "subprocess", "typing"} & set(sys.modules)))
"""


def test_the_process_in_place_of_rays_agents_loads_next_to_nothing():
    command = [*IDLE_AGENT_COMMAND[:-1], "-c", IDLE_AGENT, IDLE_AGENT_COMMAND[-1]]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


# As if there were a GPU, for what is chosen does not depend on which one.
CONFIGURE = """
import rayinfer.llm.llm, sys
for_ranks = any(name.startswith("rayinfer.engine.distributed") for name in sys.modules)
import rayinfer_deployments.engine.engine_building, rayinfer_kernels, torch
seen = ["triton" in sys.modules]
torch.cuda.is_available = lambda: {has_gpu}
seen.append(rayinfer_kernels.configure_gpu())
print(*seen, "triton" in sys.modules, for_ranks)
"""


@pytest.mark.parametrize(("has_gpu", "seen"), [(False, "False False False"), (True, "False True True")])
def test_an_engine_loads_triton_only_with_a_gpu_and_nothing_for_several_ranks(has_gpu, seen):
    assert run_python(CONFIGURE.format(has_gpu=has_gpu)) == f"{seen} False"


def test_a_module_that_loads_torch_is_noticed():
    assert json.loads(run_python(IMPORT_ALL, '["json", "torch", "os"]')) == {"torch": "loads torch"}
