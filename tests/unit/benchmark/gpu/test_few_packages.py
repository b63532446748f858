"""What a machine needs on which a GPU is measured or tested: few packages, and above all no Ray."""

from pathlib import Path

import pytest

from few_packages import ROOT, run_with_packages

MEASURING = ("torch", "triton", "numpy", "xxhash", "pydantic")
TESTING = (*MEASURING, "pytest", "pytest-xdist", "transformers")
DRY_RUN = """
import sys
import rayinfer.benchmark.gpu.__main__ as command
sys.argv += ["--dry-run", "--only", "B3,B10"]
sys.exit(command.main())
"""
IMPORT_FILES = """
import importlib.util, sys
for number, file in enumerate(sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(f"tests_{number}", file)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


@pytest.fixture
def site(tmp_path):
    """Where the packages are."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def test_the_benchmark_runs_with_five_packages(site, tmp_path):
    run = run_with_packages(MEASURING, site, DRY_RUN, "--output", str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Error" not in run.stdout
    assert "of a copy's bandwidth" in (tmp_path / "gpu.md").read_text()


def test_the_tests_for_gpus_load_neither_ray_nor_hypothesis(site):
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("GPU_TESTS :="))
    files = {file for path in line.split()[2:] for file in _test_files(ROOT / path)}
    run = run_with_packages(TESTING, site, IMPORT_FILES, *sorted(map(str, files)))
    assert run.returncode == 0, run.stderr
    assert len(files) > 10


def test_packages_that_are_not_named_are_not_there(site):
    others = ("ray", "rich", "msgspec", "psutil", "transformers", "hypothesis")
    code = f"from importlib.util import find_spec; print([name for name in {others} if find_spec(name)])"
    assert run_with_packages(MEASURING, site, code).stdout == "[]\n"


def _test_files(path: Path) -> set[Path]:
    """The files, and the conftests of the folders above them."""
    files = set(path.glob("test_*.py")) if path.is_dir() else {path}
    conftests = {folder / "conftest.py" for file in files for folder in file.parents if folder.is_relative_to(ROOT)}
    return files | {conftest for conftest in conftests if conftest.exists()}
