"""Disks that are full or read-only: the path, what is safe, and no leftovers."""

import contextlib
import os
import resource
import shutil
import subprocess

import pytest

from gtrxl_jax.cli.main import main
from gtrxl_jax.data import datasets, minari
from gtrxl_jax.runs import loop
from gtrxl_jax.runs.checkpoint import SaveError
from gtrxl_jax.runs.directory import available_steps
from gtrxl_jax.runs.logging.loggers import CsvWriter
from gtrxl_jax.runs.logging.writers import JsonLinesWriter
from tests.data.sets import make_set
from tests.runs.counter import Counter


@pytest.fixture
def disk(tmp_path):
    """Mount a small disk: `disk("64k")`."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root can mount a disk")
    with contextlib.ExitStack() as stack:

        def mount(size):
            path = tmp_path / f"disk_{size}"
            path.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
            if subprocess.run(command, capture_output=True).returncode:
                pytest.skip("this machine does not let root mount a disk")
            stack.callback(subprocess.run, ["umount", "-l", path], check=True)
            return path

        yield mount


@contextlib.contextmanager
def largest_file(size):
    """Let no file grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def failed(capsys, *arguments):
    """Run a command that must fail with exit code 1 and one line; return what it printed."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == 1, err
    assert err.count("\n") == 1, err
    return out, err


@pytest.mark.parametrize("size", ["8k", "64k", "400k"])
def test_data_set_that_does_not_fit(disk, size):
    """HDF5 would crash the process, with a part of the data left behind."""
    folder = disk(size)
    with pytest.raises(OSError, match=f"No space left on device: '{folder}/set'"):
        minari.save((make_set((400,) * 4) for _ in range(20)), folder / "set")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("size", [1, 3_000, 30_000])
def test_data_set_beyond_largest_file(tmp_path, size):
    with largest_file(size), pytest.raises(OSError, match=f"large: '{tmp_path}/set'"):
        minari.save((make_set((400,) * 4) for _ in range(20)), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []
    minari.save(make_set(), tmp_path / "set")
    assert datasets.load(tmp_path / "set").num_episodes == 5


@pytest.mark.integration
def test_collection_does_not_fit(disk, capsys):
    folder = disk("100k")
    out, err = failed(
        capsys,
        *("collect", folder / "set", "--quiet", "--env.name", "MemoryChain-v0"),
        *("--policy", "random", "--episodes", "400"),
    )
    assert out == ""
    assert f"No space left on device: '{folder}/set'" in err
    assert list(folder.iterdir()) == []


def test_checkpoint_does_not_fit(disk):
    folder = disk("48k")
    with pytest.raises(SaveError, match="earlier ones are intact: No space left on device$"):
        loop.train(Counter(iterations=40), folder=folder / "run")
    steps = available_steps(folder / "run")
    assert steps
    kept = {path.name for path in (folder / "run" / "checkpoints").iterdir()}
    assert kept == set(map(str, steps))
    subprocess.run(["mount", "-o", "remount,size=4m", folder], check=True)
    assert loop.train(Counter(iterations=40), folder=folder / "run").result.steps == 400


@pytest.mark.parametrize("writer", [JsonLinesWriter, CsvWriter])
def test_metrics_do_not_fit(writer, tmp_path):
    """A line is written as a whole or not at all, and closing says nothing else."""
    path = tmp_path / ("metrics.jsonl" if writer is JsonLinesWriter else "metrics.csv")

    def write():
        with writer(path if writer is JsonLinesWriter else tmp_path) as metrics:
            for step in range(1000):
                metrics.write(step, {"x": 0.5})

    with largest_file(400), pytest.raises(OSError, match=f"'{path}'"):
        write()
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.integration
@pytest.mark.slow  # test_metrics_do_not_fit is quick
def test_run_says_what_is_saved(tmp_path, capsys, monkeypatch):
    """The command's line, for a run whose metrics cannot be written after its first checkpoint."""
    write = JsonLinesWriter.write

    def full(self, step, metrics):
        if step > 640:
            raise OSError(28, "No space left on device", str(self._path))
        write(self, step, metrics)

    monkeypatch.setattr(JsonLinesWriter, "write", full)
    _, err = failed(
        capsys,
        *("train", "--preset", "debug", "--quiet", "--folder", tmp_path / "run"),
        *("--checkpoint.interval", "640", "--devices", "1", "--core.name", "gru"),
    )
    assert f"'{tmp_path}/run/metrics.jsonl'; the checkpoint of step 640 is intact" in err
