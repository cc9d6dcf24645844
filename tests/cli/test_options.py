"""The options of speed and memory on the command line: shown, passed on, and without effect on the numbers."""

import json
import re
from importlib import import_module
from types import SimpleNamespace

import pytest
import tiny_files
import torch
from transformers import GPT2LMHeadModel

from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution

TEXT = "the 12"
DEFAULT = {"fast": None, "compile": False, "checkpoint": None}
OPTIONS = [
    ([], {}),
    (["--fast"], {"fast": True}),
    (["--no-fast"], {"fast": False}),
    (["--compile"], {"compile": True}),
    (["--checkpoint"], {"checkpoint": True}),
    (["--no-checkpoint"], {"checkpoint": False}),
    (["--no-fast", "--compile", "--checkpoint"], {"fast": False, "compile": True, "checkpoint": True}),
]
IDS = [" ".join(arguments) or "none" for arguments, _ in OPTIONS]
EVALUATE = ["evaluate", "sva", "--model", "gpt2", "--method", "lrp", "--out", "run"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_files.save(root / "gpt2", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    return root


@pytest.fixture
def lrpx_command(lrpx_command, models, monkeypatch):
    """``lrpx`` in the folder of the models."""
    monkeypatch.chdir(models)
    return lrpx_command


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
    real = PassRunner.run

    def noting(self, batch, spec):
        seen.append(self.execution)
        return real(PassRunner(self.model), batch, spec)

    monkeypatch.setattr(PassRunner, "run", noting)
    code, _, err = lrpx_command("explain", TEXT, "-m", "gpt2", "--method", "lrp", "--method", "gradient", *arguments)
    assert (code, err) == (0, "")
    assert seen == [Execution(**given)] * 2


@pytest.mark.parametrize("command", [["explain", TEXT, "-m", "gpt2"], EVALUATE], ids=["explain", "evaluate"])
def test_tf32_is_set_once_for_the_process(lrpx_command, monkeypatch, command):
    before, seen = torch.get_float32_matmul_precision(), []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", seen.append)
    evaluated = [SimpleNamespace(failed=0, path="run/lrp")]
    monkeypatch.setattr(import_module("lrpx.evaluation.run"), "evaluate_all", lambda *_, **__: evaluated)
    for option, expected in ([], []), (["--tf32"], ["high"]):
        assert lrpx_command(*command, *option)[0] == 0
        assert seen == expected
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
