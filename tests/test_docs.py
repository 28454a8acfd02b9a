"""The documentation builds without a warning, and what pages refer to exists."""

import re
import subprocess
import sys

import pytest

from gtrxl_jax.collection import CollectionConfig
from gtrxl_jax.nn.core import CORES
from gtrxl_jax.nn.sequence.model import MODELS
from gtrxl_jax.offline.algorithm import ALGORITHMS as OFFLINE_ALGORITHMS
from gtrxl_jax.offline.config import OfflineConfig
from gtrxl_jax.online.algorithm import ALGORITHMS
from gtrxl_jax.online.config import OnlineConfig
from gtrxl_jax.validation import field_names
from tests.pages import README, ROOT, code, pages, words_of_site, written


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
    tour = (tmp_path / "notebooks" / "tour" / "index.html").read_text()
    shown = re.findall(r'src="../(tour-\d\.(?:png|gif))"', tour)
    assert len(shown) == 5
    assert all((tmp_path / "notebooks" / name).stat().st_size > 0 for name in shown)
    assert '"../../start/"' in tour
    api = (tmp_path / "api" / "index.html").read_text()
    text = (ROOT / "docs" / "api.md").read_text()
    blocks = re.findall(r"^::: (\S+)\n +options:\n +members:\s*\[([^\]]*)\]", text, re.MULTILINE)
    assert len(blocks) == text.count("members:")
    for module, names in blocks:
        for member in re.findall(r"\w+", names):
            assert f'"{module}.{member}"' in api, f"{module}.{member} is not documented"


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub forms them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "name",
    ["README", "CONTRIBUTING", "CHANGELOG", "checkpoints/README", "experiments/launch/README"],
)
def test_links_outside_the_site_resolve(name):
    """Those between the pages of the site are checked when it is built."""
    page = ROOT / f"{name}.md"
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    for link in links:
        path, _, anchor = link.partition("#")
        if not path.startswith(("https:", "http:")):
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_files_named_in_pages_exist():
    folders = "gtrxl_jax|tests|docs|examples|experiments|notebooks|checkpoints"
    found = 0
    for page in (*pages(), ROOT / "CONTRIBUTING.md"):
        text = page.read_text("utf-8")
        # In `gtrxl_jax/nn/cores/NAME.py`, capitals stand for a name of your own.
        for named in re.findall(rf"`(?:python )?((?:{folders})/[a-z0-9_./]+)[` ]", text):
            assert (ROOT / named).exists(), f"{page}: {named}"
            found += 1
    assert found > 50


def test_options_named_in_pages_exist():
    configs = [OnlineConfig(), OfflineConfig(), CollectionConfig()]
    known = {name for config in configs for name, _ in field_names(config)}
    known.add("agent.apply")  # a method
    algorithms = ALGORITHMS | OFFLINE_ALGORITHMS
    for prefix, kinds in {"core.": CORES, "algorithm.": algorithms, "model.": MODELS}.items():
        known |= {name for kind in kinds.values() for name, _ in field_names(kind(), prefix)}
    groups = "|".join({name.partition(".")[0] for name in known if "." in name})
    found = 0
    for page in pages():
        # In commands and prose, --core.memory-size; in prose also `core.memory_size`.
        pattern = rf"(?:--|`)((?:no-)?(?:{groups})\.[a-z0-9_-]+)\b"
        for named in re.findall(pattern, page.read_text("utf-8")):
            name = named.replace("-", "_")
            assert name in known or name.replace(".no_", ".") in known, f"{page}: {named}"
            found += 1
    assert found > 100


def test_readme_is_short():
    """Words as `wc -w` counts them, with code and tables."""
    text = README.read_text("utf-8")
    assert 650 <= len(text.split()) <= 800
    assert len(text.splitlines()) <= 150


def test_pages_can_be_read_in_an_hour():
    """The site has at most 15,000 words, in its text and the tables that are typed by hand.

    Not counted: code blocks, the targets of links, the API, results, and the tables that are
    written from records. `python -m tests.pages` prints the words of each page.
    """
    words = words_of_site()
    longest = sorted(words, key=lambda name: words[name])[-5:]
    assert sum(words.values()) <= 15_000, f"shorten a page, such as {', '.join(longest)}"


def test_each_figure_is_typed_on_one_page():
    """Figures of three digits or more, such as 0.987 or 12,300, in what is typed by hand.

    Others are to be links, so that a new measurement changes one page. Shorter figures meet by
    chance. Tables that are written from records are not typed, and the runs and hours of studies,
    which another test compares with the records, are left out. The pages of results are as one.
    """
    settings = {"0.999", "1,024"}
    seen: dict[str, set[str]] = {}
    for page in pages():
        if page.parent.name == "results" or page.stem == "api":
            continue
        name = "results" if page.stem.startswith("results") else page.name
        hours = r"|\| [\d,]+ \| [\d.]+ \|" if page.stem == "reproducing" else ""
        text = re.sub(rf"`[^`]*`{hours}", "", written(page))
        for figure in re.findall(r"(?<![\w.,/-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w/])(?!\.\d)", text):
            digits = re.sub(r"\D", "", figure).strip("0")
            if len(digits) >= 3 and re.search("[.,]", figure):
                seen.setdefault(figure, set()).add(name)
    assert len(seen) > 50
    twice = {figure: names for figure, names in seen.items() if len(names) > 1}
    assert twice.keys() <= settings, twice


def test_every_result_can_be_reproduced():
    """The page has a command, and the runs and hours that the last line of the report states."""
    page = ROOT / "docs" / "reproducing.md"
    studies = re.findall(r"experiments/(\w+)\.py ?(?:--)?(\w*)", code("bash", page))
    programs = {name for study, part in studies for name in (study, f"{study}_{part}")}
    reports = [report for report in pages() if report.parent.name == "results"]
    assert reports
    for report in reports:
        (row,) = re.findall(rf"^\|.*\(results/{report.name}\).*$", page.read_text(), re.MULTILINE)
        last = report.read_text("utf-8").splitlines()[-1]
        stated = re.match(r"(\d+) runs? of [^,]*, (?:([\d.]+) hours)?", last)
        for number in filter(None, stated.groups() if stated else ()):
            assert f"| {number} |" in row, f"{report.name}: {last}"
        assert report.stem in programs
