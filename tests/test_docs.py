"""The documentation builds without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_pages_include_the_examples():
    """A formatter of Python would turn these lines into expressions, which include nothing."""
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    included = re.findall(r"^--8<--\n(.*)\n--8<--$", pages, re.MULTILINE)
    assert all((ROOT / path).is_file() for path in included), included
    custom = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("custom_*.py")}
    assert custom <= set(included)


@pytest.mark.integration
def test_site_builds_without_warnings(tmp_path):
    """Broken links, missing pages and unresolved names of the API are warnings."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    api = (tmp_path / "api" / "index.html").read_text()
    for name in re.findall(r"members: \[(.*)\]", (ROOT / "docs" / "api.md").read_text()):
        for member in name.split(", "):
            assert f'.{member}"' in api, f"{member} is not documented"
