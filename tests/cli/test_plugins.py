"""``lrpx --plugin``, and ``--option``: methods of one's own on the command line, and options without a name there."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_files
from transformers import GPT2LMHeadModel

from lrpx.cli import main as cli
from lrpx.evaluation.records import failures_of
from lrpx.methods import METHODS

OWN = """
import numpy as np
import lrpx
from lrpx.text.batching import Attribution

@lrpx.register_method("place", summary="The place of a token.")
def place(model, batch, *, power=1):
    sizes = [span.stop - span.start for span in batch.spans]
    return [Attribution(relevance=np.arange(n) ** power, value=1.0, residual=None, target=1) for n in sizes]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("plugins")
    tiny_files.save(root / "gpt2", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    (root / "own_place.py").write_text(OWN)
    (root / "nothing.py").write_text("x = 1")
    (root / "broken.py").write_text("def (")
    return root


@pytest.fixture
def lrpx_command(folder, monkeypatch, capfd):
    """Run ``lrpx`` in this process: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(folder)
    known = dict(METHODS)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lrpx", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return (end.value.code or 0, *capfd.readouterr())

    yield run
    METHODS.clear()
    METHODS.update(known)


def test_a_method_of_ones_own(lrpx_command):
    asked = ("explain", "the 12", "-m", "gpt2", "--method", "place", "--option", "power=2", "--format", "json")
    code, out, err = lrpx_command("--plugin", "own_place.py", *asked)
    assert (code, err) == (0, "")
    relevance = json.loads(out)[0]["relevance"]
    assert relevance == [i**2 for i in range(len(relevance))]
    code, out, _ = lrpx_command("--plugin", "own_place.py", "methods")
    assert code == 0
    assert "The place of a token." in out


def test_options_without_a_name_of_their_own(lrpx_command):
    asked = ("explain", "the 12", "-m", "gpt2", "--method", "integrated-gradients", "--format", "json")
    coarse, fine = (json.loads(lrpx_command(*asked, "--option", f"steps={n}")[1])[0] for n in (1, 16))
    assert abs(fine["residual"]) < abs(coarse["residual"])
    assert fine["provenance"]["options"]["steps"] == 16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--plugin", "nowhere.py", "methods"), "--plugin nowhere.py: there is no such file"),
        (("--plugin", "no_such_module_here", "methods"), "Give a module that can be imported, or a file.py."),
        (("--plugin", "broken.py", "methods"), "invalid syntax"),
        (("--plugin", "nothing.py", "methods"), "registers no method"),
        (("explain", "x", "--option", "steps"), "--option 'steps': give NAME=VALUE."),
        (("explain", "x", "--option", "stepz=3"), "no method has an option 'stepz'. Did you mean 'steps'?"),
        (("explain", "x", "--option", "steps=3"), "--option steps=3 is for integrated-gradients"),
    ],
)
def test_what_cannot_be_used_is_one_line(lrpx_command, arguments, said):
    code, out, err = lrpx_command(*arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_evaluate_says_why_samples_failed():
    failures = [
        {"method": "place", "reason": "relevance of shape [3] for 5 tokens", "samples": 1},
        {"method": "place", "reason": "relevance of shape [3] for 7 tokens", "samples": 2},
    ]
    run = SimpleNamespace(failed=3, path=Path("run"), counts={"failures": failures})
    assert failures_of(run) == (
        "3 samples failed: place: relevance of shape [3] for 7 tokens (2 samples); other reasons: run/counts.json"
    )
    run.counts["failures"].pop(0)
    assert failures_of(run).endswith("(2 samples)")
