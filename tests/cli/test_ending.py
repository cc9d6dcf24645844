"""How commands end: wrong use as one sentence, closed pipes, interrupts."""

import subprocess
import sys

import pytest
import typer

from lrpx.cli.ending import status_of
from lrpx.cli.main import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("explain a --target-id abc", "--target-id abc: give a whole number. Try 'lrpx explain --help'."),
        ("explain a --target-id=a'b", """--target-id 'a'"'"'b': give a whole number."""),
        ("evaluate x -o y --limit 1.5", "--limit 1.5: give a whole number. Try 'lrpx evaluate --help'."),
        ("flow a --share x", "--share x: give a number."),
        ("explain a --xyz", "no such option: --xyz. Try 'lrpx explain --help'."),
        ("explain a --gamma=abc", "no such option: --gamma. Rules are typed as --rules gamma=0.25. Try"),
        (
            "explain a --baseline x",
            "no such option: --baseline. Options of methods are typed as --option baseline=VALUE.",
        ),
        ("explain --targt a", "no such option: --targt. Did you mean --target? Try 'lrpx explain --help'."),
        ("explain --target", "requires an argument. Try 'lrpx explain --help'."),
        ("evaluate", "missing argument 'DIR'"),
        ("evaluate a -o b --plugin mine.py", "--plugin goes before the command: lrpx --plugin ... evaluate ..."),
        ("nothing", "no such command 'nothing'. Try 'lrpx --help'."),
        ("flow a b", "extra argument"),
    ],
)
def test_wrong_use_is_one_sentence(lrpx_command, arguments, message):
    code, out, err = lrpx_command(*arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("lrpx: ")
    assert err.count("\n") == 1


def test_a_number_that_is_too_large_is_one_sentence(lrpx_command):
    code, _, err = lrpx_command("app", "--port", "99999")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("lrpx: --port 99999: ")
    assert "65535" in err


@pytest.mark.parametrize("raised", [BrokenPipeError(), KeyboardInterrupt(), typer.Abort()])
def test_statuses(raised, monkeypatch, tmp_path):
    def run():
        raise raised

    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("sys.stdout", out)
        status = status_of(run, typer.main.get_command(app), [])
    assert status == {BrokenPipeError: 0, KeyboardInterrupt: 130}.get(type(raised), 1)


PROGRAM = """
import os, sys
reading, writing = os.pipe()
os.dup2(writing, 1)
os.close(reading), os.close(writing)
from lrpx.cli.main import main
main()
"""


@pytest.mark.parametrize("arguments", [["--help"], ["methods", "--long"], ["--version"], ["explain", "--help"]])
def test_a_closed_pipe_is_no_error_and_says_nothing(arguments):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
