"""A study as a script, with options, records and a report of the same name in a folder of results.

    STUDY = Study(__file__, grid, report)

    if __name__ == "__main__":
        STUDY.main()

`--workers 2` starts two processes, and `--report-only` writes the report of the saved runs alone.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from gtrxl_jax.files import write_text
from gtrxl_jax.studies.cells import Cell, run
from gtrxl_jax.studies.records import Record, read
from gtrxl_jax.studies.report import Paragraph, markdown, origin


@dataclasses.dataclass(frozen=True)
class Options:
    """The part of a study to run."""

    seeds: int | None = None
    """Number of seeds of each cell; by default as defined by the study."""
    only: tuple[str, ...] = ()
    """Cells to run, by name or by values of their labels, as in `--only gtrxl lstm 25`; all by
    default."""
    again: bool = False
    """Repeat runs that are already saved."""
    workers: int = 1
    """Number of parallel processes, each bound to its own cores."""
    steps: int | None = None
    """Environment steps of a run, or updates of an offline run; by default as defined by the
    study."""
    results: Path = Path("results")
    """Folder of the records, the report and figures; by default results/ beside the script."""
    report_only: bool = False
    """Write the report of the saved runs, without executing the missing ones."""


@dataclasses.dataclass(frozen=True)
class Study:
    """A study, which is in a script.

    Attributes:
      script: the path of the script, `__file__`.
      grid: a function from the options to the cells.
      report: a function from the options and all records to the title and the paragraphs of the
        report. It draws figures itself.
      options: the class of the options, `Options` or one that adds to it.
      name: a function from the options to the name of the records and of the report, by default
        the script's name.
    """

    script: str
    grid: Callable[[Any], list[Cell]]
    report: Callable[[Any, list[Record]], tuple[str, Sequence[Paragraph]]]
    options: type[Options] = Options
    name: Callable[[Any], str] | None = None

    def main(self) -> None:
        """Run the study with options from the command line."""
        default = self.options(results=Path(self.script).parent / "results")
        self.run(tyro.cli(self.options, default=default))

    def run(self, options: Options) -> None:
        """Execute the missing runs, and write and print the report.

        Raises:
          ValueError: if there are no records to report.
        """
        name = self.name(options) if self.name else Path(self.script).stem
        cells, path = self.grid(options), options.results / f"{name}.jsonl"
        if options.report_only:
            records = read(path, [cell.labels for cell in cells])
            if not records:
                raise ValueError(f"{path} has no records: omit --report-only to execute runs")
        else:
            records = run(
                cells,
                path,
                only=options.only,
                again=options.again,
                workers=options.workers,
            )
        title, paragraphs = self.report(options, records)
        text = markdown(title, [*paragraphs, origin(records)])
        write_text(options.results / f"{name}.md", text)
        print(text)
