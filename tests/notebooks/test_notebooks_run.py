"""Every notebook runs to its end in a kernel of its own, and draws every plot."""

import base64
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.notebooks

FOLDER = Path(__file__).parents[2] / "notebooks"
LIMIT_S = 170  # of one cell; a whole notebook should take less on a laptop


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(path, request, tmp_path):
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")  # make test-notebooks installs them
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    plots = [
        base64.b64decode(output.data["image/png"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(plots) == sum("plt.show()" in cell.source for cell in notebook.cells) > 0
    if folder := request.config.getoption("--plots"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for number, plot in enumerate(plots):
            (Path(folder) / f"{path.stem}-{number}.png").write_bytes(plot)
