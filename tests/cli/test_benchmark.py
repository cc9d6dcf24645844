"""The commands of the benchmark: what they hand on, print and refuse."""

import hashlib
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from lrpx.benchmark import download

EVALUATE = ["evaluate", "sva", "--model", "gpt2", "--method", "lrp", "--out", "run"]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], {"at": "input", "rules": None, "dtype": "float32", "metrics": ()}),
        (["--metric", "difference", "--metric", "sufficiency"], {"metrics": ["difference", "sufficiency"]}),
        (["--at", "embedding"], {"at": "embedding"}),
        (["--rules", "gamma=0.25"], {"rules": "gamma=0.25"}),
        (["--dtype", "auto"], {"dtype": "auto"}),
    ],
)
def test_evaluate_hands_its_options_on(lrpx_command, monkeypatch, arguments, given):
    seen = []

    def evaluate_all(*_, **options):
        seen.append(options)
        return [SimpleNamespace(failed=0, path="run/lrp")]

    monkeypatch.setattr(import_module("lrpx.evaluation.run"), "evaluate_all", evaluate_all)
    code, _, err = lrpx_command(*EVALUATE, *arguments)
    assert code == 0, err
    assert {name: seen[0][name] for name in given} == given


@pytest.mark.parametrize(
    ("options", "models"), [([], ["smollm2-135m"]), (["-m", "gpt2"], ["gpt2"]), (["-m", "a", "-m", "b"], ["a", "b"])]
)
def test_evaluate_has_the_default_model_of_the_other_commands(lrpx_command, monkeypatch, options, models):
    seen = []

    def evaluate_all(*given, **_):
        seen.append(given)
        return [SimpleNamespace(failed=0, path="run/lrp")]

    monkeypatch.setattr(import_module("lrpx.evaluation.run"), "evaluate_all", evaluate_all)
    code, _, err = lrpx_command("evaluate", "sva", *options, "--out", "run")
    assert code == 0, err
    assert seen[0][1] == models


def test_the_help_of_evaluate_names_the_choices(lrpx_command):
    _, out, _ = lrpx_command("evaluate", "--help")
    told = " ".join(re.sub(r"[│\n]", " ", out).split())
    for word in (
        "input (of the first block), embedding, or a module",
        "alpha1beta0, gamma=0.25",
        "float32",
        "auto: the checkpoint's own",
    ):
        assert word in told


def test_blimp_and_haystack_are_made(lrpx_command, tmp_path):
    pairs = Path(__file__).parents[1] / "benchmark" / "blimp"
    code, out, err = lrpx_command("benchmark", "blimp", str(pairs), "-o", "b", "--paradigm", "anaphor_gender_agreement")
    assert (code, out) == (0, "")
    assert "12 samples in b; what was dropped and why: b/counts.json" in err
    code, out, err = lrpx_command(
        "benchmark", "haystack", "-o", "h", "--sentences", "4", "--needles", "2", "--samples", "3"
    )
    assert (code, out) == (0, "")
    assert "3 samples in h" in err
    assert (tmp_path / "h" / "README.md").is_file()
    code, _, err = lrpx_command("benchmark", "haystack", "-o", "i", "--tokens", "100")
    assert code == 2
    assert "--tokens 100: by which tokenizer? Give --tokenizer NAME too" in err


def test_the_default_model_can_be_named_as_a_tokenizer(lrpx_command, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("lrpx.models.default.download.default_model", lambda: tmp_path / "its-folder")
    monkeypatch.setattr("lrpx.benchmark.build_haystack", lambda *_, **options: seen.append(options) or Made())
    monkeypatch.setattr("lrpx.benchmark.tokenize", lambda _, name, **options: seen.append(name) or Made())
    lrpx_command(
        "benchmark", "haystack", "-o", "h", "--tokens", "9", "--tokenizer", "smollm2-135m", "--filler", "f.txt"
    )
    lrpx_command("benchmark", "tokenize", "h", "--tokenizer", "smollm2-135m", "--tokenizer", "gpt2")
    assert seen[0]["tokenizer"] == str(tmp_path / "its-folder") == seen[1]
    assert (seen[0]["tokens"], seen[0]["filler"], seen[2]) == (9, Path("f.txt"), "gpt2")


class Made(list):
    """What stands for a benchmark or a tokenised set here."""

    path, input = Path("h"), "causal"


def test_download(lrpx_command, monkeypatch, tmp_path):
    content = b"1\tthe keys are here .\n"
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    file = download.Published("set", "set.tsv", "https://host/data/set.tsv", "Their paper", "MIT")
    monkeypatch.setitem(download.PUBLISHED, blob, file)
    monkeypatch.setattr(download, "_download", lambda url: {file.url: content}[url])
    (tmp_path / "in").mkdir()
    code, out, err = lrpx_command("benchmark", "download", "set", "--out", "in")
    assert (code, out) == (0, "")
    assert (tmp_path / "in" / "set.tsv").read_bytes() == content
    assert "in/set.tsv: set.tsv as published. Their paper. Licence: MIT." in err
    assert "Next: lrpx benchmark build in/set.tsv --out sva" in err
    assert lrpx_command("benchmark", "download", "nothing")[2].startswith(
        "lrpx: no published file is called 'nothing'."
    )


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], {"format": None, "compare": None, "examples": 5, "k": 2, "output": None}),
        (["--k", "1", "--examples", "3"], {"k": 1, "examples": 3}),
        (["--compare", "paper"], {"compare": "paper"}),
    ],
)
def test_report_hands_its_options_on(lrpx_command, monkeypatch, arguments, given):
    seen = []
    monkeypatch.setattr("lrpx.report.write", lambda runs, **options: seen.append((runs, options)))
    assert lrpx_command("report", "run", *arguments)[0] == 0
    ((runs, options),) = seen
    assert [str(run) for run in runs] == ["run"]
    assert {name: options[name] for name in given} == given
