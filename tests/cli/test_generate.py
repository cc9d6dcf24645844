"""``lrpx generate``: what it writes, where, and what it refuses."""

import csv
import io
import json

import numpy as np
import pytest
import tiny_files
from transformers import BertForMaskedLM, GPT2LMHeadModel

import lrpx
from lrpx.cli import main as cli

PROMPT = "the 12"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_files.save(root / "gpt2", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    tiny_files.save(root / "bert", BertForMaskedLM, tiny_files.CONFIGS["bert"])
    return root


@pytest.fixture
def generate(models, monkeypatch, capfdbinary):
    """Run ``lrpx generate`` in this process: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(models)

    def run(*arguments, stdin=b"", model="gpt2"):
        monkeypatch.setattr("sys.argv", ["lrpx", "generate", "-m", model, *arguments])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfdbinary.readouterr()
        return end.value.code or 0, out.decode("utf-8"), err.decode("utf-8")

    return run


def test_in_the_terminal(generate):
    code, out, err = generate(PROMPT, "--continuation", " 1 2")
    assert (code, err) == (0, "")
    assert out.startswith("attnlrp: gpt2")
    assert "the␣12␣1␣2" in out  # spaces are tokens of this tokenizer
    assert '"2"' in out


def test_json_holds_what_the_library_returns(generate, models):
    more = {"method": "lrp", "contrast": "mean", "hops": 1, "spans": [(0, 2), (-1, 3)]}
    options = ["--method", "lrp", "--contrast", "mean", "--hops", "1", "--span", "0:2", "--span", "-1:3"]
    code, out, _ = generate(PROMPT, "--max-new-tokens", "3", "--format", "json", *options)
    assert code == 0
    found = lrpx.GenerationExplanation.from_dict(json.loads(out))
    expected = lrpx.Explainer(models / "gpt2").generate(PROMPT, max_new_tokens=3, **more)
    np.testing.assert_array_equal(found.relevance, expected.relevance)
    assert (found.tokens, found.spans, found.hops) == (expected.tokens, [(0, 2), (2, 3)], 1)


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")  # as likely as random weights have it
def test_a_table_has_the_rows_and_texts_to_the_last_character(generate, models):
    prompt, continuation = 'a,"b"\n\r', ' "ש",'
    arguments = (prompt, "--continuation", continuation)
    assert generate(*arguments, "-o", "g.csv") == (0, "", "")
    content = (models / "g.csv").read_bytes().decode("utf-8")
    assert generate(*arguments, "--format", "csv") == (0, content, "")
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    expected = lrpx.Explainer(models / "gpt2").generate(prompt, continuation=continuation)
    numbers = dict.fromkeys(("start", "stop", "position", "token_id"), int) | {"relevance": float}
    found = [tuple(numbers.get(name, str)(value) for name, value in row.items()) for row in rows]
    assert found == expected.table().rows
    last = [row for row in rows if row["stop"] == str(expected.generated)]
    assert "".join(row["text"] for row in last) + last[0]["explained_text"] == prompt + continuation


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")  # as likely as random weights have it
def test_files(generate, models, tmp_path):
    pytest.importorskip("matplotlib")
    for suffix, start in (
        ("html", b"<!doctype html>"),
        ("json", b"{"),
        ("txt", b"attnlrp"),
        ("png", b"\x89PNG"),
        ("pdf", b"%PDF"),
        ("svg", b"<?xml"),
    ):
        path = tmp_path / f"x.{suffix}"
        code, _, err = generate(PROMPT, "--continuation", " 1 2", "-o", str(path))
        assert (code, err) == (0, "")  # no progress bar, as standard error is no terminal
        assert path.read_bytes().startswith(start)


def test_twenty_tokens_by_default(generate):
    found = json.loads(generate(PROMPT, "--format", "json")[1])
    assert len(found["tokens"]) - found["prompt_length"] <= 20


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")  # as likely as random weights have it
def test_from_standard_input(generate):
    found = json.loads(generate("--continuation", " 1", "--format", "json", stdin=PROMPT.encode())[1])
    assert found["text"] == PROMPT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([PROMPT, "--continuation", ""], "--continuation '' is empty"),
        (
            [PROMPT, "--continuation", " 1", "--max-new-tokens", "3"],
            "--max-new-tokens 3 and --continuation ' 1' are both given",
        ),
        ([PROMPT, "--max-new-tokens", "0"], "--max-new-tokens 0: give a number of tokens from 1"),
        ([PROMPT, "--span", "3"], "--span 3: give START:STOP"),
        ([PROMPT, "--continuation", " 1", "--span", "5:6"], "is empty or goes beyond"),
        (
            [PROMPT, "--format", "latex"],
            "latex is for lrpx explain; lrpx generate has terminal, json, csv, html, png, pdf, svg.",
        ),
        ([PROMPT, "--method", "alti-logit", "--contrast", "mean"], "alti-logit explains logits of tokens"),
        ([PROMPT, "--objective", "p"], "--objective p: give"),
        (["", "--max-new-tokens", "2"], "is empty"),
    ],
)
def test_what_cannot_be_used(generate, arguments, message):
    code, _, err = generate(*arguments)
    assert code == 2
    assert message in err.replace("\n", " ")
    assert err.startswith("lrpx: ")


def test_a_masked_model(generate):
    code, _, err = generate(PROMPT, model="bert")
    assert code == 2
    assert "fills in masks" in err
    assert "lrpx explain" in err
