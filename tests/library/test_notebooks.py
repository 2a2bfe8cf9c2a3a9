"""The example notebooks run from the first cell to the last, and show what they were saved with."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """What cells show, without progress; # for numbers, which differ a little between machines."""
    texts = [
        " ".join(
            output["data"].get("text/plain", "") if "data" in output else output["text"]
            for output in cell.outputs  # a stream may come in several parts
            if output.get("name") != "stderr"
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    for pattern, new in ((r"\d+[.]\d+(e[-+]\d+)?", "#"), (r"\S*/results/", "results/")):
        texts = [re.sub(pattern, new, text) for text in texts]
    return [" ".join(text.split()) for text in texts]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # of Jupyter's own
def test_notebooks_run(path, tmp_path):
    saved, again = (nbformat.read(path, as_version=4) for _ in range(2))
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(again, timeout=600, kernel_name="python3", resources=resources).execute()
    assert shown(again) == shown(saved)
    assert len(shown(saved)) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_notebooks_are_whole(path):
    """Every cell of code was run in order, and nothing of the machine is in it."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == [*range(1, len(counts) + 1)]
    assert "Traceback" not in path.read_text()
    assert not re.search(r"/(home|work|Users|root)/", path.read_text())
    # Statistics of private records, without noise, are not covered by the accounted epsilon.
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert not re.search(r"features[.](mean|std|min|max)[(]|StandardScaler", code)
