"""The notebooks run without errors, their claims hold, and their files are in order."""

import ast
import collections
import dataclasses
import inspect
import shutil
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

from notebooks.execute import digest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"


@dataclasses.dataclass
class Expected:
    """What a notebook shows: its images, and the claims of the prose that no cell asserts."""

    images: dict
    claims: str


EXPECTED = {
    "tour": Expected(
        {"image/png": 4, "image/gif": 1},
        """
        assert success_SN[:, 0].max() < 0.5 and success_SN[:, -1].max() > 0.95, success_SN
        assert scores[False] > 0.95 and scores[True] < 0.75, scores
        assert set(episodes) == {"up", "down"} and all(e.success for e in episodes.values())
        assert all(e.cue == 0 and e.decision == 8 for e in episodes.values())
        assert max(shares.max() for shares in to_cue.values()) > 0.5, to_cue
        """,
    ),
    "own_ppo": Expected(
        {"image/png": 1},
        """
        assert errors[0] < 1e-5 < 1e-4 < errors[1], errors
        assert first_minibatch.max() < 1e-5, first_minibatch
        reached = {k: int((curve[0] >= 0.9).argmax()) for k, curve in curves.items()}
        late = 1.2 * max(reached["GTrXL, segments of 8"], reached["LSTM, segments of 32"])
        assert reached["LSTM, segments of 8"] > late or not reached["LSTM, segments of 8"], reached
        assert min(scores["GTrXL, segments of 8"], scores["LSTM, segments of 32"]) > 0.95, scores
        assert scores["GTrXL without memory"] < 0.65, scores
        """,
    ),
    "rate": Expected(
        {"image/png": 3},
        """
        assert min(success["RATE"]) > 0.95, success
        within = sum(n <= CONTEXT * SEGMENTS for n in LENGTHS)
        dt = success["Decision Transformer"]
        assert min(dt[:within]) > 0.95 and np.nanmax(dt[within:]) < 0.75, success
        assert max(with_noise[within:]) < 0.75, with_noise
        """,
    ),
    "study": Expected(
        {"image/png": 4},
        """
        steps = {core: studies.to_goal(group) for core, group in by_core.items()}
        assert all(np.isnan(steps[core]).sum() < 3 for core in ("gtrxl", "gru", "lstm")), steps
        assert np.nanmedian(steps["gru"]) < np.nanmedian(steps["gtrxl"]), steps
        """,
    ),
}


@pytest.fixture(scope="module", params=EXPECTED)
def executed(request, tmp_path_factory):
    """The name of a notebook, and its outputs after execution."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    notebook = nbformat.read(shutil.copy(FOLDER / f"{name}.ipynb", folder), as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(inspect.cleandoc(EXPECTED[name].claims)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        # Compile with full optimization, since training takes longer than compilation.
        patch.delenv("XLA_FLAGS")
        client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}})
        client.execute()
    return name, [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.slow
def test_notebook_runs_without_warnings(executed):
    _, outputs = executed
    assert not [output["text"] for output in outputs if output.get("name") == "stderr"]


def images_of(outputs):
    """Return how many images of each kind are displayed."""
    kinds = [kind for output in outputs for kind in output.get("data", {}) if "image/" in kind]
    return collections.Counter(kinds)


@pytest.mark.slow
def test_every_image_is_displayed(executed):
    name, outputs = executed
    assert images_of(outputs) == EXPECTED[name].images


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(name):
    notebook = read(name)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", EXPECTED)
def test_cells_are_valid_and_imports_exist(name):
    """Only the imports are executed."""
    imported = 0
    for cell in code_cells(name):
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), name, "exec"), {})
        imported += len(imports)
    assert imported > 0


def test_every_notebook_is_executed_and_named():
    names = {path.stem for path in FOLDER.glob("*.ipynb")}
    assert names == EXPECTED.keys()
    overview = (ROOT / "docs" / "index.md").read_text()
    assert [name for name in names if f"(../notebooks/{name}.ipynb)" not in overview] == []


@pytest.mark.parametrize("name", EXPECTED)
def test_notebook_is_stored_as_it_was_executed(name):
    """From top to bottom, with its images; and small, since each execution stays in the history."""
    cells, notebook = code_cells(name), read(name)
    assert notebook.metadata.executed == digest(notebook), "the code has changed: make notebooks"
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert images_of(outputs) == EXPECTED[name].images
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 500_000


@pytest.mark.parametrize("name", EXPECTED)
def test_first_cell_installs_on_colab_only(name):
    first, *rest = (cell.source for cell in code_cells(name))
    assert not any("%pip" in source for source in rest)
    # The same cell in all notebooks, except for extras.
    assert first.replace("[offline]", "") == code_cells("tour")[0].source
    assert 'if "google.colab" in sys.modules:' in first
