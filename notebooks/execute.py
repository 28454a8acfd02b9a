"""Execute the notebooks and store their outputs, which GitHub and the documentation show.

    python notebooks/execute.py            # all of them; or by name, as in `execute.py tour study`

Images are stored with a palette, which is a fraction of their size. Standard error is left out.
"""

import base64
import hashlib
import io
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent


def compress(png: str) -> str:
    """Return a PNG with a palette of 256 colors, both in base64."""
    smaller = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        image.convert("RGB").quantize(256).save(smaller, "png", optimize=True)
    return base64.b64encode(smaller.getvalue()).decode()


def digest(notebook: NotebookNode) -> str:
    """Return a hash of the code without its spaces, by which outputs of other code are known."""
    code = "".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256("".join(code.split()).encode()).hexdigest()[:16]


def execute(notebook: NotebookNode) -> None:
    """Execute all cells in an empty folder, and keep their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=None,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if png := output.get("data", {}).get("image/png"):
                    output.data["image/png"] = compress(png)
    # The kernel's version is of no use to a reader, and differs between machines.
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["executed"] = digest(notebook)


def main() -> None:
    """Execute the notebooks that the arguments name, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            notebook = nbformat.read(path, as_version=4)
            execute(notebook)
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
