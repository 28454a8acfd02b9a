"""The pages of the documentation: their code, the commands that they show, and their words.

    python -m tests.pages

prints the words of each page of the site, as `tests/test_docs.py` counts them.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def pages() -> list[Path]:
    """Return the READMEs and the pages of the site, in the order in which they are read."""
    entry = r": (?!notebooks/)(\S+\.md)$"
    names = re.findall(entry, (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    return [README, ROOT / "checkpoints" / "README.md", *(ROOT / "docs" / name for name in names)]


def code(language: str, page: Path = README) -> str:
    """Return all code blocks of a language, at their line numbers in the page.

    Blocks that include a file of `examples/` are left out: these have tests of their own.
    """
    text = page.read_text("utf-8")
    blocks = list(re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    lines = [""] * len(text.splitlines())
    for block in blocks:
        first = text.count("\n", 0, block.start(1))
        body = block[1].splitlines()
        if body[0] != "--8<--":
            lines[first : first + len(body)] = body
    return "\n".join(lines)


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the words of each command; it may go on after a backslash."""
    lines = enumerate(code("bash", page).splitlines(), start=1)
    for number, line in lines:
        while line.endswith("\\"):
            line = line[:-1] + next(lines)[1]
        if words := shlex.split(line, comments=True):
            yield number, words


def written(page: Path) -> str:
    """Return what a page says: its text and its tables, without code and the targets of links.

    Tables that `make results` writes are omitted too.
    """
    text = page.read_text("utf-8")
    text = re.sub(r"^<!-- table: .*?^<!-- end -->$", "", text, flags=re.DOTALL | re.MULTILINE)
    fence = "```|--8<--"
    code = rf"^( *)({fence}).*?^\1({fence})$"
    text = re.sub(code, "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def count_words(text: str) -> int:
    """Count the words of a text: what stands between spaces and has a letter or a digit."""
    return len(re.findall(r"\S*[A-Za-z0-9]\S*", text))


def words_of_site() -> dict[str, int]:
    """Count the words of each page of the site, except the API's and the results'.

    Tables count, except those that `make results` writes; code and the targets of links do not.
    """
    docs = ROOT / "docs"
    names = ("api.md", "claims.md", "reproducing.md")
    read = [page for page in pages() if docs in page.parents and page.parent.name != "results"]
    return {
        str(page.relative_to(docs)): count_words(written(page))
        for page in read
        if page.name not in names and not page.stem.startswith("results")
    }


if __name__ == "__main__":
    words = words_of_site()
    for name, number in words.items():
        print(f"{number:6,} {name}")
    print(f"{sum(words.values()):6,} in all")
