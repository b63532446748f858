"""Packages of others, installed into a folder of the test's and used in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.tiny_models.tiny_checkpoints import make_tiny_llama

MODELS = """
from rayinfer.models.architectures.llama import LlamaForCausalLM

class Acme(LlamaForCausalLM):
    pass

class Broken:
    def __init__(self, config):
        raise AttributeError("no such layer")

def no_module(config):
    return "a text"
"""
TOKENIZERS = """
from tokenizers import Tokenizer as Backend
from rayinfer.tokenization.tokenizer import Tokenizer

def read(folder):
    return Tokenizer(Backend.from_file(str(folder / "acme.vocab")), {"eos_token": "<|im_end|>"})

def read_badly(folder):
    return 7
"""
ENTRY_POINTS = """
[rayinfer.models]
AcmeForCausalLM = acme_models:Acme
BrokenForCausalLM = acme_models:Broken
TextForCausalLM = acme_models:no_module
MissingForCausalLM = acme_gone:Model
LlamaForCausalLM = acme_models:Broken

[rayinfer.tokenizers]
AcmeTokenizer = acme_tokenizers:read
BadTokenizer = acme_tokenizers:read_badly
GoneTokenizer = acme_gone:read
MarianTokenizer = acme_tokenizers:read_badly
"""

LOAD = """
import json, logging, sys
from pathlib import Path
sys.path.append(sys.argv[1])
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
from rayinfer.errors import RayinferError
from rayinfer.models.loader import load_decoder
from rayinfer.models.checkpoints.model_folder import check_model_folder
from rayinfer.tokenization.tokenizer import Tokenizer
import torch
found = {}
for folder in map(Path, sys.argv[2:]):
    try:
        check_model_folder(folder)
        tokenizer = Tokenizer.from_folder(folder)
        decoder = load_decoder(folder, torch.float32, torch.device("cpu"))
        found[folder.name] = [type(decoder).__name__, tokenizer.decode(tokenizer.encode("hello there"))]
    except RayinferError as error:
        found[folder.name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def install(site: Path, name: str, entry_points: str, **modules: str) -> None:
    """Install a package as pip does, without its network and time."""
    for module, source in modules.items():
        (site / f"{module}.py").write_text(textwrap.dedent(source))
    information = site / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[dict, str]:
    """Load one tiny model under many names; returns what came of each, and the log."""
    root = tmp_path_factory.mktemp("packages")
    site = root / "site"
    site.mkdir()
    install(site, "acme", ENTRY_POINTS, acme_models=MODELS, acme_tokenizers=TOKENIZERS)
    install(site, "rival", "[rayinfer.models]\nDoubleForCausalLM = acme_models:Acme\n")
    install(site, "rival2", "[rayinfer.models]\nDoubleForCausalLM = acme_models:Acme\n")
    whole = make_tiny_llama(root / "whole", layers=1)

    def make(name: str, *, architecture: str = "LlamaForCausalLM", tokenizer_class: str | None = None) -> Path:
        folder = root / name
        folder.mkdir()
        for file in whole.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
        if tokenizer_class is not None:
            (folder / "tokenizer.json").rename(folder / "acme.vocab")
            settings = json.loads((folder / "tokenizer_config.json").read_text())
            (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": tokenizer_class}))
        return folder

    folders = [
        whole,
        make("acme", architecture="AcmeForCausalLM", tokenizer_class="AcmeTokenizer"),
        *(make(f"{name}-model", architecture=f"{name}ForCausalLM") for name in MODEL_NAMES),
        *(make(f"{name}-tokenizer", tokenizer_class=f"{name}Tokenizer") for name in TOKENIZER_NAMES),
    ]
    command = [sys.executable, "-c", LOAD, str(site), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


MODEL_NAMES = ("Broken", "Text", "Missing", "Double", "Unknown")
TOKENIZER_NAMES = ("Bad", "Gone", "Marian", "Unknown")


def test_a_packages_architecture_and_tokenizer_are_used(found):
    assert found[0]["acme"] == ["Acme", "hello there"]


def test_broken_packages_hurt_no_other_model(found):
    assert found[0]["whole"] == ["LlamaForCausalLM", "hello there"]


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("Broken-model", ["BrokenForCausalLM", "package acme", "AttributeError: no such layer"]),
        ("Text-model", ["TextForCausalLM", "no torch module"]),
        ("Missing-model", ["MissingForCausalLM", "package acme", "No module named 'acme_gone'"]),
        ("Double-model", ["DoubleForCausalLM", "more than once", "package rival", "package rival2"]),
        ("Unknown-model", ["UnknownForCausalLM", "not supported", "AcmeForCausalLM", "LlamaForCausalLM"]),
        ("Bad-tokenizer", ["BadTokenizer", "no Tokenizer"]),
        ("Gone-tokenizer", ["GoneTokenizer", "package acme", "No module named 'acme_gone'"]),
        ("Marian-tokenizer", ["tokenizer.json is missing"]),
        ("Unknown-tokenizer", ["tokenizer.json is missing"]),
    ],
)
def test_each_error_names_the_package_and_the_reason(found, folder, said):
    error = found[0][folder]
    assert error.startswith(("ModelLoadError: ", "UnsupportedArchitecture: "))
    assert "\n" not in error
    for words in said:
        assert words in error


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MarianTokenizer"])
def test_a_name_that_is_taken_is_refused_with_a_warning(found, name):
    assert any(
        line.startswith("WARNING entry point") and f":{name} =" in line and "package acme is refused" in line
        for line in found[1].splitlines()
    )


SUMS = """
import torch
from rayinfer import register_predictor
from rayinfer.protocols import TensorSpec

class Sums(torch.nn.Module):
    def forward(self, x):
        return x.sum(-1)

def register(name):
    register_predictor(
        name,
        Sums,
        inputs=[TensorSpec(name="x", datatype="FP32", shape=(-1, 3))],
        outputs=[TensorSpec(name="sum", datatype="FP32", shape=(-1,))],
    )

def register_nothing(name):
    pass
"""
SERVE = """
import json, sys
import numpy as np
sys.path.append(sys.argv[1])
from rayinfer.config import engine_config
from rayinfer.errors import RayinferError
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer_deployments.cli.checked_folders import check_folder
folder = resolve_model("acme-sums")
found = {"kind": predictor_kind(folder), "needs torch": "torch" in sys.modules}
found["same"] = folder == resolve_model("acme-sums")
check_folder(folder)
from rayinfer import Predictor
from rayinfer.predictors.build_engine import build_predictor_engine
engine = build_predictor_engine(engine_config(model=str(folder), num_threads=1), folder)  # as services name it
found["tasks"], found["digest"] = engine.description.predictor.tasks, engine.description.predictor.digest
engine.exit()
with Predictor("acme-sums") as predictor:
    found["shown"] = repr(predictor)
    found["sum"] = predictor.predict({"x": np.ones((2, 3), np.float32)})["sum"].tolist()
try:
    Predictor("acme-nothing")
except RayinferError as error:
    found["nothing"] = str(error)
print(json.dumps(found))
"""


def test_a_packages_predictor_is_a_model_to_serve(tmp_path, kernel_folder):
    site, cache = tmp_path / "site", tmp_path / "cache"
    site.mkdir()
    cache.mkdir()
    (cache / "kernels").symlink_to(kernel_folder)
    points = "[rayinfer.models]\nacme-sums = acme_sums:register\nacme-nothing = acme_sums:register_nothing\n"
    install(site, "acme", points, acme_sums=SUMS)
    environment = os.environ | {"RAYINFER_CACHE": str(cache)}
    command = [sys.executable, "-c", SERVE, str(site)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kind"], found["needs torch"], found["same"]) == ("tensors", False, True)
    assert (found["tasks"], found["digest"], found["sum"]) == (["infer"], "", [3.0, 3.0])
    assert found["shown"] == "Predictor('acme-sums', tasks: infer; inputs: x FP32[-1, 3]; outputs: sum FP32[-1])"
    assert "registered no predictor" in found["nothing"]
