"""The command that reproduces the paper's table: what it hands on, and its exit status."""

from importlib import import_module

import pytest

from lrpx.report.plan import PlanStep
from lrpx.report.reproduce import Reproduced


@pytest.mark.parametrize(("missing", "status"), [({}, 0), ({"GPT2-small": "it is gated."}, 1)])
def test_it_hands_its_options_on(lrpx_command, monkeypatch, tmp_path, missing, status):
    seen = []

    def reproduce(output, **options):
        seen.append((str(output), options))
        (tmp_path / "comparison.md").write_text("# The figures\n")
        return Reproduced(tmp_path / "comparison.md", missing)

    monkeypatch.setattr(import_module("lrpx.report.reproduce"), "reproduce", reproduce)
    arguments = ["-o", "out", "--models", "gpt2=x,gpt2-xl", "--samples", "7", "--device", "cpu", "--benchmark", "sva"]
    code, out, err = lrpx_command("reproduce", *arguments)
    assert code == status
    assert "# The figures" in out
    but = ", but GPT2-small could not be evaluated" if missing else ""
    assert " ".join(err.split()) == f"lrpx: finished{but}: {tmp_path / 'comparison.md'}"
    ((output, options),) = seen
    assert (output, options["models"], options["samples"]) == ("out", ["gpt2=x,gpt2-xl"], 7)
    assert (options["device"], str(options["benchmark"]), options["dtype"]) == ("cpu", "sva", None)


@pytest.mark.parametrize(("missing", "status"), [("", 0), ("no space", 1)])
def test_the_plan_computes_nothing(lrpx_command, monkeypatch, missing, status):
    monkeypatch.setattr(import_module("lrpx.report.reproduce"), "reproduce", None)
    monkeypatch.setattr(
        import_module("lrpx.report.plan"), "plan", lambda *_, **__: [PlanStep("GPT2-small", missing, 0, 90.0)]
    )
    code, out, _ = lrpx_command("reproduce", "-o", "out", "--plan")
    assert code == status
    assert out.startswith("1. GPT2-small (about 90 s)\n")
    assert ("MISSING: no space" in out) == bool(missing)


def test_an_unknown_model_is_wrong_use(lrpx_command):
    code, _, err = lrpx_command("reproduce", "-o", "out", "--models", "gpt3", "--plan")
    assert code == 2
    assert "Did you mean 'gpt2'" in err
