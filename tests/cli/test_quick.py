"""What needs no model loads no torch: help, lists, versions and usage errors come at once."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from lrpx.cli.main import main
sys.argv = ["lrpx", *json.loads(sys.argv[1])]
try:
    main()
finally:
    print([m for m in ("torch", "transformers") if m in sys.modules], file=sys.stderr)
"""


def ended(*arguments):
    """Exit status of a command in a Python of its own, and the heavy modules that it has loaded."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["explain", "--help"], 0),
        (["evaluate", "--help"], 0),
        (["--version"], 0),
        (["methods"], 0),
        (["methods", "--long"], 0),
        (["explain"], 2),
        (["explain", "a", "--nothing"], 2),
        (["explain", "a", "--method", "atnlrp"], 2),
        (["explain", "a", "--format", "htlm"], 2),
        (["explain", "--file", "none.txt"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_no_torch_is_loaded(arguments, status):
    assert ended(*arguments) == (status, "[]")


@pytest.mark.slow
def test_the_check_can_fail():
    assert ended("explain", "a", "--model", "./none")[1] == "['torch', 'transformers']"


def test_python_can_run_the_package():
    done = subprocess.run([sys.executable, "-m", "lrpx", "--version"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("lrpx ")


def test_an_explainer_loads_no_pipelines():
    """Whether a model is a pipeline is asked of what is no model; the package has 26 modules."""
    program = "import sys, lrpx; lrpx.Explainer; print('transformers.pipelines' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
