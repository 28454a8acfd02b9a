"""A hook of mkdocs: the notebooks are pages of the site, with the outputs that they store.

Links between `docs/` and `notebooks/` are those of the repository, and lead to the pages.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).parent
IMAGES = {"image/png": "png", "image/gif": "gif"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, its images, and the notebook itself."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        images: dict[str, bytes] = {}
        text = "\n\n".join(blocks(path, images))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        for name, content in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to notebooks into links to their pages."""
    link = r"\]\(((?:\.\./)*)\.\./notebooks/(\w+)\.ipynb\)"
    return re.sub(link, r"](\1notebooks/\2.md)", markdown)


def blocks(path: Path, images: dict[str, bytes]) -> Iterator[str]:
    """Yield the blocks of a notebook in Markdown; add to its images, by name."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source.replace("](../docs/", "](../")
            if number == 0:
                yield f"*The notebook: [{path.name}]({path.name}), as it was executed.*"
        else:
            yield f"```python\n{source}\n```"
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                yield fenced(output["text"])
            else:
                yield displayed(output, f"{path.stem}-{len(images) + 1}", images)


def displayed(output: dict[str, Any], name: str, images: dict[str, bytes]) -> str:
    """Return what a cell displays: an image, which is added to `images`, Markdown, or text."""
    data = output["data"]
    for kind in IMAGES.keys() & data.keys():
        images[f"{name}.{IMAGES[kind]}"] = base64.b64decode("".join(data[kind]))
        width = output["metadata"].get(kind, {}).get("width")
        size = f'{{ width="{width}" }}' if width else ""
        return f"![Output of the cell above]({name}.{IMAGES[kind]}){size}"
    if "text/markdown" in data:  # with headings below those of the page
        return re.sub(r"^#", "###", "".join(data["text/markdown"]), flags=re.MULTILINE)
    return fenced(data["text/plain"])


def fenced(lines: list[str]) -> str:
    """Return printed text as a block of its own."""
    return "```text\n" + "".join(lines).rstrip("\n") + "\n```"
