"""A method of one's own that was edited is another run; its manifest says what the method was."""

import importlib.util
import json
import re
import sys

import pytest
from evaluation_tools import benchmark, gpt2

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.errors import InputError, LrpxError, LrpxWarning
from lrpx.evaluation.own_methods import NO_SOURCE
from lrpx.evaluation.records import open_run
from lrpx.evaluation.run import evaluate
from lrpx.methods import METHODS
from lrpx.report import report

OWN = """
import numpy as np
import lrpx
from lrpx.text.batching import Attribution

KIND = "scores"

def place(n, power):
    return np.arange(1.0, n + 1) ** power

@lrpx.register_method("place", measures=KIND)
def by_place(model, batch, *, power=1, others=(1, 2)):
    sizes = [span.stop - span.start for span in batch.spans]
    targets = batch.targets.tolist()
    return [Attribution(relevance=place(n, power), value=1.0, residual=None, target=t) for n, t in zip(sizes, targets)]
"""


@pytest.fixture(scope="module")
def sva(tmp_path_factory):
    return benchmark(tmp_path_factory.mktemp("benchmark"))


@pytest.fixture
def evaluated(sva, tmp_path, monkeypatch):
    """Write a file with a method, load it as ``--plugin`` does, and evaluate the method."""
    for name, method in list(METHODS.items()):
        monkeypatch.setitem(METHODS, name, method)  # puts the table back
    monkeypatch.setitem(METHODS, "place", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(text, methods=("place",), out="run"):
        METHODS.pop("place", None)
        path = tmp_path / "mine.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("mine_for_tests", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "mine_for_tests", module)
        spec.loader.exec_module(module)
        model, tokenizer = gpt2()
        return evaluate(sva, model, list(methods), tmp_path / out, tokenizer=tokenizer, progress=False, limit=6)

    return run


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "power=1",
            "power=2",
            r"place: the default of its option power was 1 and is 2; place: its function was edited",
        ),
        ("=place(n, power)", "=place(n, -power)", "place: its function was edited"),
        ("np.arange(1.0, n + 1)", "np.ones(n)", r"place: another part of .*mine\.py was edited"),
        (
            'KIND = "scores"',
            'KIND = "sensitivity"',
            r"place: what it measures was 'scores' and is 'sensitivity'; place: another part of .*mine\.py was edited",
        ),
        ("(1, 2)", "(1, 3)", r"others was '\(1, 2\)' and is '\(1, 3\)'"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_an_edited_method_is_refused(evaluated, tmp_path, old, new, message, finished):
    run = evaluated(OWN)
    if not finished:
        (run.path / "counts.json").unlink()
    assert OWN.count(old) == 1
    with pytest.raises(InputError, match=message) as refused:
        evaluated(OWN.replace(old, new))
    assert re.search(r"Evaluate into a new folder, such as out='.*run-2'", str(refused.value))
    assert f"--out {tmp_path / 'run-2'}" in refused.value.in_command
    assert evaluated(OWN.replace(old, new), out="run-2").finished


def test_an_edited_method_that_has_no_records_yet_goes_on(evaluated, tmp_path):
    failing = OWN.replace("sizes =", "raise lrpx.UnsupportedModelError('a bug')\n    sizes =")
    with pytest.raises(LrpxError, match="a bug"):
        evaluated(failing)
    before = json.loads((tmp_path / "run" / "manifest.json").read_text())["own_methods"]
    run = evaluated(OWN)
    assert run.finished
    assert run.manifest["own_methods"] != before
    assert run.manifest == evaluated(OWN, out="run-2").manifest
    with pytest.raises(InputError, match="its function was edited"):  # now it has records
        evaluated(OWN.replace("power=1", "power=2"))


def test_the_same_method_goes_on(evaluated):
    first = evaluated(OWN)
    assert first.manifest["own_methods"]["place"]["options"] == {"power": 1, "others": "(1, 2)"}
    assert first.manifest["own_methods"]["place"]["measures"] == "scores"
    assert evaluated(OWN).manifest == first.manifest


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_does_not_say_what_its_method_measures_goes_on_and_says_it(evaluated, finished):
    run = evaluated(OWN)
    manifest = json.loads((run.path / "manifest.json").read_text())
    del manifest["own_methods"]["place"]["measures"]  # as an older lrpx wrote it
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    if not finished:
        (run.path / "counts.json").unlink()
    with pytest.raises(InputError, match=r"since then\. place: its function was edited\."):
        evaluated(OWN.replace("=place(n, power)", "=place(n, -power)"))
    assert open_run(run.path).manifest == manifest
    again = evaluated(OWN)
    assert again.finished
    assert again.manifest == open_run(run.path).manifest == run.manifest


@pytest.mark.parametrize("format", ["html", "latex"])
@pytest.mark.parametrize("measures", ["sensitivity", "mixture", "scores"])
def test_a_report_without_the_plugin_says_what_one_with_it_says(evaluated, format, measures):
    run = evaluated(OWN.replace('"scores"', repr(measures)))
    known = report([run.path], format=format, examples=2)
    del METHODS["place"]
    assert report([run.path], format=format, examples=2) == known
    assert ("place has no sign" in known.replace("\\ ", " ")) == (measures != "scores")


def test_other_methods_are_named_without_their_consequences(evaluated):
    evaluated(OWN)
    with pytest.raises(InputError, match=r"methods are place there and lrp now\. Choose") as refused:
        evaluated(OWN, methods=["lrp"])
    assert "own_methods" not in str(refused.value)


def test_lrpxs_own_methods_leave_no_entry(evaluated):
    assert "own_methods" not in evaluated(OWN, methods=["lrp"]).manifest


def test_a_run_from_before_the_manifest_said_so_is_refused(evaluated):
    run = evaluated(OWN)
    manifest = json.loads((run.path / "manifest.json").read_text())
    del manifest["own_methods"]
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="place: the run does not say what its source was"):
        evaluated(OWN)


def test_a_method_without_source_says_so(evaluated, sva, tmp_path):
    evaluated(OWN)
    del METHODS["place"]
    exec(OWN, {"__name__": "nowhere"})
    model, tokenizer = gpt2()
    with pytest.warns(LrpxWarning, match=r"place: the source of this method cannot be read.*into a new folder"):
        run = evaluate(sva, model, ["place"], tmp_path / "exec", tokenizer=tokenizer, progress=False, limit=6)
    assert run.manifest["own_methods"]["place"]["function"] == NO_SOURCE
    with (
        pytest.warns(LrpxWarning),
        pytest.raises(InputError, match="its source could be read only one of the two times"),
    ):
        evaluate(sva, model, ["place"], tmp_path / "run", tokenizer=tokenizer, progress=False, limit=6)


def test_source_is_that_of_the_running_function(evaluated, tmp_path):
    """The file may be edited while a process runs: what counts is the file as the function was defined."""
    run = evaluated(OWN)
    code = METHODS["place"].code
    (tmp_path / "mine.py").write_text(OWN.replace("power=1", "power=2"))
    assert METHODS["place"].code == code
    assert run.manifest["own_methods"]["place"]["function"] == code.function
