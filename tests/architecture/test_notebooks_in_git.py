"""Rules of the notebooks as git has them: no outputs, imports of public names only, labelled plots."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import rayinfer

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

# Packages that their README offers to programs.
PUBLIC_MODULES = {
    "rayinfer",
    "rayinfer_kernels",
    "rayinfer.jobs.progress.folder",
    "rayinfer.jobs.sources.formats",
    "rayinfer.jobs.verify",
}


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def source_of(path: Path) -> str:
    return "\n".join("".join(cell["source"]) for cell in code_cells(path))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


def test_there_are_notebooks_and_the_readme_lists_each():
    readme = (NOTEBOOKS[0].parent / "README.md").read_text()
    assert all(f"({path.name})" in readme for path in NOTEBOOKS)


def test_a_notebook_has_no_outputs(notebook):
    assert not [cell for cell in code_cells(notebook) if cell["outputs"] or cell["execution_count"] is not None]


def test_a_notebook_imports_only_public_names(notebook):
    tree = ast.parse(source_of(notebook))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    own = [node for node in imports if node.module.split(".")[0].startswith("rayinfer")]
    assert own, "it shows nothing of ours"
    assert {node.module for node in own} <= PUBLIC_MODULES
    names = {name.name for node in own if node.module == "rayinfer" for name in node.names}
    assert names <= set(rayinfer.__all__)


def test_every_plot_of_a_notebook_has_labelled_axes(notebook):
    for cell in code_cells(notebook):
        source = "".join(cell["source"])
        if "plt.show()" in source:
            assert "xlabel=" in source
            assert "ylabel=" in source
