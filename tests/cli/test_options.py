"""The options of speed and memory on the command line: shown, passed on, and without effect on the numbers."""

import json
import re
from importlib import import_module
from types import SimpleNamespace

import pytest
import tiny_files
import torch
from transformers import GPT2LMHeadModel

from lrpx.cli import main as cli
from lrpx.passes import attribution as capture
from lrpx.passes.dispatch import Execution

TEXT = "the 12"
DEFAULT = {"fast": None, "compile": False, "checkpoint": None, "tf32": False}
OPTIONS = [
    ([], {}),
    (["--fast"], {"fast": True}),
    (["--no-fast"], {"fast": False}),
    (["--compile"], {"compile": True}),
    (["--checkpoint"], {"checkpoint": True}),
    (["--no-checkpoint"], {"checkpoint": False}),
    (["--tf32"], {"tf32": True}),
    (
        ["--no-fast", "--compile", "--checkpoint", "--tf32"],
        {"fast": False, "compile": True, "checkpoint": True, "tf32": True},
    ),
]
IDS = [" ".join(arguments) or "none" for arguments, _ in OPTIONS]
EVALUATE = ["evaluate", "sva", "--model", "gpt2", "--method", "lrp", "--out", "run"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_files.save(root / "gpt2", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    return root


@pytest.fixture
def lrpx_command(models, monkeypatch, capsys):
    """Run ``lrpx`` in this process: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(models)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lrpx", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


@pytest.mark.parametrize("command", ["explain", "evaluate"])
def test_help_shows_them_under_their_own_heading(lrpx_command, command):
    code, out, _ = lrpx_command(command, "--help")
    assert code == 0
    assert out.count("Speed and memory") == 1
    panel = out.split("Speed and memory")[1].split("╰")[0]
    shown = re.findall(r"--[a-z0-9-]+", panel)
    assert shown == ["--fast", "--no-fast", "--compile", "--checkpoint", "--no-checkpoint", "--tf32"]
    for name in shown:
        assert len(re.findall(rf"{name}(?![\w-])", out)) == 1
    explained = " ".join(re.sub(r"[│\n]", " ", panel).split())
    for word in ("CUDA graphs", "TorchInductor", "Recompute blocks", "Default:", "TF32"):
        assert word in explained


@pytest.mark.parametrize(("arguments", "given"), OPTIONS, ids=IDS)
def test_explain_is_given_them(lrpx_command, monkeypatch, arguments, given):
    """Down to every pass, for each method."""
    seen = []

    def answer(model, batch, question, execution):
        seen.append((execution, torch.get_float32_matmul_precision()))
        return real(model, batch, question, Execution())

    before = torch.get_float32_matmul_precision()
    real = capture.answer
    monkeypatch.setattr(capture, "answer", answer)
    code, _, err = lrpx_command("explain", TEXT, "-m", "gpt2", "--method", "lrp", "--method", "gradient", *arguments)
    assert (code, err) == (0, "")
    assert seen == [(Execution(**given), "high" if "tf32" in given else before)] * 2
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("arguments", "given"), OPTIONS, ids=IDS)
def test_evaluate_is_given_them(lrpx_command, monkeypatch, arguments, given):
    """What is not given is left to choose."""
    seen = []

    def evaluate_all(*_, **options):
        seen.append(options)
        return [SimpleNamespace(failed=0, path="run/lrp")]

    monkeypatch.setattr(import_module("lrpx.evaluation.run"), "evaluate_all", evaluate_all)
    code, _, err = lrpx_command(*EVALUATE, *arguments)
    assert code == 0, err
    assert [{name: options[name] for name in DEFAULT} for options in seen] == [{**DEFAULT, **given}]


@pytest.mark.parametrize("command", [["explain", TEXT], EVALUATE])
@pytest.mark.parametrize("option", ["--no-compile", "--no-tf32", "--checkpoints"])
def test_what_is_no_choice_is_a_usage_error(lrpx_command, command, option):
    code, out, err = lrpx_command(*command, option)
    assert (code, out) == (2, "")
    assert "Try 'lrpx" in err
    assert option in err


def test_the_numbers_are_the_same(lrpx_command):
    def numbers(*arguments):
        code, out, err = lrpx_command("explain", TEXT, "the", "-m", "gpt2", "--format", "json", *arguments)
        assert (code, err) == (0, "")
        return [(e["relevance"], e["value"], e["target"], e["layers"]) for e in json.loads(out)]

    for place in ([], ["--at", "transformer.h.*"]):
        expected = numbers(*place)
        assert len(expected) == 2
        for arguments in (["--checkpoint"], ["--no-checkpoint"], ["--fast"], ["--no-fast"]):  # no graphs on a CPU
            assert numbers(*place, *arguments) == expected
