"""Every notebook runs from top to bottom on the embedded model, and is kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
EVERY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@EVERY
def test_it_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


@EVERY
def test_it_is_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    assert len(notebook.cells) > 5
    for cell in notebook.cells:
        assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)
