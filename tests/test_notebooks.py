"""The tour notebook runs without errors, and its claims hold."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "notebooks" / "tour.ipynb"

# Executed after the last cell: the claims of the prose that no cell asserts.
CLAIMS = """
assert success_SN[:, 0].max() < 0.5 and success_SN[:, -1].max() > 0.95, success_SN
assert scores[False] > 0.95 and scores[True] < 0.75, scores
assert set(episodes) == {"up", "down"} and all(e.success for e in episodes.values())
assert all(e.cue == 0 and e.decision == 8 for e in episodes.values())
assert max(shares.max() for shares in to_cue.values()) > 0.5, to_cue
"""


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """The executed notebook."""
    folder = tmp_path_factory.mktemp("tour")
    notebook = nbformat.read(shutil.copy(TOUR, folder), as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CLAIMS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        # Compile with full optimisation, since training takes longer than compilation.
        patch.delenv("XLA_FLAGS")
        client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}})
        return client.execute()


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_notebook_runs_without_warnings(tour):
    assert not [o["text"] for o in outputs(tour) if o.get("name") == "stderr"]


def test_every_image_is_displayed(tour):
    shown = [kind for o in outputs(tour) for kind in o.get("data", {}) if "image/" in kind]
    assert shown.count("image/png") == 4
    assert shown.count("image/gif") == 1


def test_notebook_is_stored_without_outputs():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    # Only the first cell installs the package, and only on Colab.
    installs = [cell for cell in code if "%pip" in cell.source]
    assert installs == code[:1]
    assert 'if "google.colab" in sys.modules:' in installs[0].source
