"""The help and the completion of all commands, and `gtrxl doctor`."""

import contextlib
import io
import json
import subprocess

import jax
import pytest

from gtrxl_jax import __version__
from gtrxl_jax.cli import catalog
from gtrxl_jax.cli.main import SHELLS, main
from gtrxl_jax.machine import SET_HERE
from tests.bad_inputs.refusal import refused


def printed(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*arguments])
    return out.getvalue()


def test_catalog_has_every_command(tmp_path):
    line = refused(tmp_path, "no-such-command").strip()
    assert line.partition("Valid: ")[2].split(", ") == sorted(
        {name.split()[0] for name in catalog.COMMANDS}
    )


def test_help_says_what_each_command_is_for():
    shown = printed("--help")
    for name in catalog.COMMANDS:
        assert f"{name} " in shown
        assert catalog.purpose(name).endswith(".")
        assert catalog.purpose(name) in shown


def test_purposes_and_options_are_of_the_parsers():
    rows = {name: (purpose, options) for name, purpose, options in catalog.rows()}
    assert rows["`gtrxl export`"] == (
        "Export the trained agent of a run to a new folder, without the rest of the run.",
        "`FOLDER` `--best` `--modules` `--to` `--seed` `--stablehlo`",
    )
    assert {"`--core.*`", "`--total-steps`"} < {*rows["`gtrxl train`"][1].split()}
    assert rows["`gtrxl repeat`"][1] == "`RUN`, and those of `gtrxl train`"


COMPLETE = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
function=$(complete -p gtrxl | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
$function gtrxl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_bash_completes_commands_and_options(tmp_path):
    script = tmp_path / "gtrxl"
    script.write_text(printed("--print-completion", "bash"))

    def completed(words):
        program = COMPLETE.format(script=script, words=words)
        return subprocess.check_output(["bash", "-c", program], text=True).split()

    assert completed("gtrxl train") == ["train", "train-offline"]
    assert completed("gtrxl train --core.mem") == ["--core.memory-size"]
    assert completed("gtrxl evaluate --epi") == ["--episodes"]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_of_other_shells(shell):
    assert "train-offline" in printed("--print-completion", shell)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"gtrxl_jax {__version__}\n")


def test_doctor_reports_versions_devices_and_extras(monkeypatch):
    monkeypatch.setenv("GTRXL_TRACEBACK", "1")
    found = json.loads(printed("doctor", "--json"))
    assert found["gtrxl_jax"] == __version__
    assert found["packages"]["jax"] == jax.__version__
    assert (found["backend"], len(found["devices"])) == ("cpu", jax.device_count())
    assert "missing" not in found["packages"].values()
    assert found["environment"]["GTRXL_TRACEBACK"] == "1"
    assert not found["environment"].keys() & SET_HERE
    text = printed("doctor")
    assert f"gtrxl_jax           {__version__}, commit {found['commit']}\n" in text
    assert f"devices             cpu, {jax.device_count()} x cpu\n" in text
    for name in found["missing_extras"]:
        assert f"no {name} " in text


def test_doctor_reports_devices_that_fail(monkeypatch):
    def devices():
        raise RuntimeError("Unable to initialize backend 'cuda':\nno driver")

    monkeypatch.setattr(jax, "devices", devices)
    shown = printed("doctor")
    assert "devices             RuntimeError: Unable to initialize backend 'cuda': no dr" in shown
    assert json.loads(printed("doctor", "--json"))["devices"] == []


def test_doctor_of_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("gtrxl_jax.cli.doctor.missing", lambda extra="": None)
    assert "missing             gtrxl_jax: imported from a folder\n" in printed("doctor")
