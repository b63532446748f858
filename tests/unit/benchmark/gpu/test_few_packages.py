"""Packages that a machine needs for GPU benchmarks and tests: few, and no Ray."""

import json

import pytest

from support.kernels.gpu_tests import may_have_gpu_tests
from support.services.few_packages import ROOT, run_with_packages
from support.tiny_models.tiny_checkpoints import make_tiny_llama

MEASURING = ("torch", "triton", "numpy", "xxhash", "pydantic", "msgspec", "llguidance", "tokenizers", "regex")
TESTING = (*MEASURING, "pytest", "pytest-xdist", "transformers")
DRY_RUN = """
import sys
import rayinfer.benchmark.gpu.__main__ as command
sys.argv += ["--dry-run", "--only", "B3,B10"]
sys.exit(command.main())
"""
QUALITY = """
import sys
import rayinfer.benchmark.gpu.quality as command
sys.argv += ["--modes", "bfloat16", "--max-tokens", "200"]
sys.exit(command.main())
"""
COLLECT = """
import sys
import pytest
sys.exit(pytest.main(["-m", "gpu", "--collect-only", "-q", *sys.argv[1:]]))
"""


@pytest.fixture
def site(tmp_path):
    """Return the folder of the packages."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def test_the_benchmark_runs_with_few_packages(site, tmp_path):
    run = run_with_packages(MEASURING, site, DRY_RUN, "--output", str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Error" not in run.stdout
    assert "of a copy's bandwidth" in (tmp_path / "gpu.md").read_text()


def test_the_quality_of_a_model_is_measured_with_few_packages(site, tmp_path):
    folder = make_tiny_llama(tmp_path / "tiny")
    arguments = ("--model", str(folder), "--output", str(tmp_path))
    run = run_with_packages(MEASURING, site, QUALITY, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| bfloat16 |" in (tmp_path / "quality-tiny-gpu.md").read_text()
    assert [mode["mode"] for mode in json.loads((tmp_path / "quality-tiny-gpu.json").read_text())["modes"]] == [
        "float32",
        "bfloat16",
    ]


def test_the_tests_for_gpus_load_neither_ray_nor_hypothesis(site):
    run = run_with_packages(TESTING, site, COLLECT, "-c", str(ROOT / "pyproject.toml"), str(ROOT / "tests"))
    assert run.returncode == 0, run.stdout
    assert "tests/unit/engine/test_engine_on_a_gpu.py::" in run.stdout
    assert "tests/invariance/test_invariance_on_a_gpu.py::" in run.stdout
    assert "tests/unit/engine/test_ranks_on_gpus.py::" not in run.stdout  # they need two


def test_files_with_gpu_tests_are_found_by_their_text(tmp_path):
    plain, one, two = (tmp_path / f"test_{name}.py" for name in ("plain", "one", "two"))
    plain.write_text("def test(): ...")
    two.write_text("@pytest.mark.gpu(2)\ndef test(): ...")
    assert not may_have_gpu_tests(tmp_path, 1)
    one.write_text("@pytest.mark.gpu\ndef test(): ...")
    assert [may_have_gpu_tests(path, 1) for path in (plain, one, two, tmp_path)] == [False, True, False, True]
    assert may_have_gpu_tests(two, 2)


def test_packages_that_are_not_named_are_not_there(site):
    others = ("ray", "rich", "psutil", "transformers", "hypothesis")
    code = f"from importlib.util import find_spec; print([name for name in {others} if find_spec(name)])"
    assert run_with_packages(MEASURING, site, code).stdout == "[]\n"
