"""``lrpx faithfulness``: the table, the file, and what is refused."""

import csv
import json
import math
from types import SimpleNamespace

import pytest
import tiny_files
from transformers import GPT2ForSequenceClassification, GPT2LMHeadModel

from lrpx.cli import faithfulness as command
from lrpx.cli import main as cli


@pytest.fixture
def faithfulness(tmp_path, monkeypatch, capfd):
    """Run ``lrpx faithfulness`` in this process: exit status, standard output, standard error."""
    tiny_files.save(tmp_path / "gpt2", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    capfd.readouterr()
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lrpx", "faithfulness", "-m", "gpt2", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return (end.value.code or 0, *capfd.readouterr())

    return run


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def test_texts_of_a_file_with_targets_of_their_own(faithfulness, tmp_path):
    lines = [{"text": "the 12", "target": "1", "contrast": "2"}, {"text": "the 1 2 12"}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, out, err = faithfulness("--file", "texts.jsonl", "--method", "lrp", "--method", "random", "-o", "f.csv")
    assert (code, err) == (0, "")
    assert "comprehensiveness" in out
    assert "rank correlation of lrp and random" in out
    rows = rows_of(tmp_path / "f.csv")
    assert [(row["text"], row["method"]) for row in rows] == [(t, m) for t in "01" for m in ("lrp", "random")]
    assert all(float(row["area_most"]) == float(row["area_most"]) for row in rows)


def test_deleted_tokens(faithfulness, tmp_path):
    for hide in ("replace", "delete"):
        code, _, err = faithfulness("the 1 2 12", "--method", "lrp", "--hide", hide, "-o", f"{hide}.csv")
        assert (code, err) == (0, "")
    tables = [(tmp_path / f"{hide}.csv").read_text() for hide in ("replace", "delete")]
    assert tables[0] != tables[1]


def test_heads_by_alti_logit_alone(faithfulness, tmp_path):
    for methods in (["alti-logit"], ["alti-logit", "random"], ["alti-logit", "lrp"]):
        given = [part for name in methods for part in ("--method", name)]
        code, _, err = faithfulness("the 1 2 12", "--of", "heads", *given, "-o", f"{len(given)}{methods[-1]}.csv")
        assert (code, err) == (0, "")
    tables = [rows_of(file) for file in sorted(tmp_path.glob("*.csv"))]
    assert len(tables) == 3
    assert tables[0][0] == tables[1][0] == tables[2][0]


@pytest.mark.parametrize("method", ["alti-logit", "random"])
def test_neurons_by_a_method_without_neurons(faithfulness, method):
    code, _, err = faithfulness("the 12", "--of", "neurons", "--at", "*.mlp", "--method", method)
    assert code == 2
    assert f"relevance of neurons, which {method} does not give. Add --method attnlrp" in " ".join(err.split())


def test_a_position(faithfulness, tmp_path):
    lines = [{"text": "the 1 2 12", "position": 1}, {"text": "the 1 2 12"}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for name, arguments in {"own": ["--file", "texts.jsonl"], "given": ["the 1 2 12", "--position", "1"]}.items():
        assert faithfulness(*arguments, "--method", "lrp", "-o", f"{name}.csv")[0] == 0
    first, last = rows_of(tmp_path / "own.csv")
    [given] = rows_of(tmp_path / "given.csv")
    assert given["area_most"] == first["area_most"] != last["area_most"]


def test_a_line_with_more_than_a_text(faithfulness, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "the 12", "question": "12?"}')
    code, _, err = faithfulness("--file", "texts.jsonl")
    assert code == 2
    assert "line 1 is more than a text" in " ".join(err.split())


@pytest.mark.parametrize("arguments", [["heads"], ["neurons", "--at", "transformer.h.*.mlp.act"]])
def test_heads_and_neurons(faithfulness, tmp_path, arguments):
    code, out, err = faithfulness("the 12", "--of", *arguments, "--method", "lrp", "--method", "random", "-o", "f.csv")
    assert (code, err) == (0, "")
    assert f"the most relevant {arguments[0]} removed first" in " ".join(out.split())
    rows = rows_of(tmp_path / "f.csv")
    assert [row["method"] for row in rows] == ["lrp", "random"]
    assert all(float(row["area_most"]) != 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["the", "-o", "f.txt"], "--output f.txt: a table is written as CSV"),
        (["the", "--baseline", "black"], '--baseline black: give "zero", "mean", "pad" or a token id'),
        (["the", "--method", "lrpp"], "unknown method 'lrpp'. Did you mean 'lrp'"),
        (["the", "--hide", "drop"], '--hide drop: give "replace" or "delete"'),
        (["the", "--of", "head"], "--of head: give what is removed. Did you mean 'heads'"),
        (["the", "--of", "neurons"], "--of neurons needs modules: --at 'transformer.h.*.mlp.act'"),
        (["the", "--at", "transformer.h.*.mlp.act"], "--at names the modules of neurons: give --of neurons too"),
        (["the", "--device-map", "{}", "--device", "cpu"], "--device-map"),
        (["the", "--steps", "0"], "--steps 0: give a whole number"),
    ],
)
def test_what_cannot_be_used_is_one_line(faithfulness, arguments, said):
    code, out, err = faithfulness(*arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


@pytest.mark.parametrize("width", [80, 60])
def test_a_narrow_terminal_cuts_nothing(monkeypatch, capsys, width):
    names = ("attnlrp", "gradient-x-input", "integrated-gradients")
    means = {name: dict.fromkeys(command._HEADS, (0.25, -1.5, 12.5)) for name in names}
    found = SimpleNamespace(mean=lambda: means, agreement=dict)
    monkeypatch.setenv("COLUMNS", str(width))
    command._show(found, 3, "tokens")
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert all(name in shown.split() for name in names)
    assert [shown.split().count(number) for number in ("+0.25", "-1.50", "+12.50")] == [15, 15, 15]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_intervals_stay_in_one_piece(monkeypatch, capsys, width):
    means = {name: dict.fromkeys(command._HEADS, (0.25, -1.5, 12.5)) for name in ("attnlrp", "random")}
    found = SimpleNamespace(mean=lambda: means, agreement=dict)
    monkeypatch.setenv("COLUMNS", str(width))
    command._show(found, 3, "tokens")
    shown = capsys.readouterr().out
    assert shown.count("-1.50 to +12.50") == 10
    assert ("comprehensiveness" in shown) or width == 140


def test_one_text_has_no_intervals(monkeypatch, capsys):
    found = SimpleNamespace(
        mean=lambda: {"lrp": dict.fromkeys(command._HEADS, (0.25, math.nan, math.nan))}, agreement=dict
    )
    monkeypatch.setenv("COLUMNS", "80")
    command._show(found, 1, "tokens")
    shown = capsys.readouterr().out
    assert shown.count("+0.25") == 5
    assert "Of one text (there are intervals from 6 texts on), in logits." in " ".join(shown.split())


def test_a_classifier_is_refused_before_anything_is_computed(faithfulness, tmp_path):
    tiny_files.save(tmp_path / "gpt2", GPT2ForSequenceClassification, tiny_files.CONFIGS["gpt2"])
    code, out, err = faithfulness("the 12")
    assert (code, out) == (2, "")
    assert "GPT2ForSequenceClassification is for text-classification" in err
    assert "Load a causal or masked language model" in " ".join(err.split())


def test_a_text_that_cannot_be_explained_is_named_by_its_line(faithfulness, tmp_path):
    long = " ".join(["the"] * 100)
    (tmp_path / "texts.txt").write_text(f"the 12\n\n{long}\n\nthe 1 2\n")
    code, out, err = faithfulness("--file", "texts.txt", "--method", "lrp", "-o", "f.csv")
    assert code == 1
    assert "--file texts.txt, line 3: " in " ".join(err.split())
    assert "Means over 2 texts" in " ".join(out.split())
    assert [row["text"] for row in rows_of(tmp_path / "f.csv")] == ["0", "2"]
    (tmp_path / "texts.txt").write_text(f"{long}\n{long}\n")
    code, _, err = faithfulness("--file", "texts.txt", "--method", "lrp", "-o", "g.csv")
    assert code == 2
    assert err.count("line ") == 2
    assert not (tmp_path / "g.csv").exists()
