import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from support.architecture.floors import FOREIGN_ROOMS
from support.architecture.sources import PACKAGES, ROOT, find_sources, is_within

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Parts that a declared package brings in its own version, Triton only for GPUs.
EXTRAS = ("onnx", "otel", "redis", "jobs", "data", "s3")  # whose packages the sources import where they are needed
PARTS = {"pydantic_core": "pydantic", "triton": "torch"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~!; ]", name)[0]).lower()


def test_every_package_that_the_sources_import_is_declared():
    optional = PYPROJECT["project"]["optional-dependencies"]
    declared = {
        normalized(line)
        for lines in (PYPROJECT["project"]["dependencies"], *(optional[extra] for extra in EXTRAS))
        for line in lines
    }
    distributions = packages_distributions()
    undeclared = {
        top_level: source.module
        for source in find_sources()
        if not any(is_within(source.module, room) for room in FOREIGN_ROOMS)
        for found in source.imports
        if (top_level := _whole(found.target.partition(".")[0])) not in {*sys.stdlib_module_names, *PACKAGES, ""}
        and declared.isdisjoint(normalized(name) for name in distributions.get(top_level, [top_level]))
    }
    assert undeclared == {}


def _whole(top_level: str) -> str:
    return PARTS.get(top_level, top_level)


def test_every_declared_dependency_is_pinned():
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    needed = PYPROJECT["project"]["dependencies"]
    declared = {normalized(line) for lines in (needed, *extras) for line in lines}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normalized(line) for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line)}
    assert declared - pinned == {"rayinfer"}
    assert "accelerate" not in {normalized(line) for line in needed}  # tests alone have transformers read GGUF files


@pytest.mark.parametrize("target", ["check", "test"])
def test_the_commands_of_the_readme_are_those_that_ci_runs(target):
    assert f"make {target}" in (ROOT / "README.md").read_text()
    assert re.search(rf"^timed make {target}$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_every_folder_at_the_top_says_what_it_holds():
    folders = ("rayinfer", "kernels", "deployments", "tests", "k8s", "notebooks", "docker")
    assert [name for name in folders if not (ROOT / name / "README.md").is_file()] == []


def test_the_version_is_written_the_same_everywhere():
    tree = ast.parse((ROOT / "rayinfer" / "__init__.py").read_text())
    assigned = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__"
    ]
    version = PYPROJECT["project"]["version"]
    assert [ast.literal_eval(value) for value in assigned] == [version]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
