"""``lrpx flow``: what it writes, where, and what it refuses."""

import csv
import io
import json

import numpy as np
import pytest
import tiny_files
from transformers import GPT2ForSequenceClassification, GPT2LMHeadModel

import lrpx
from lrpx.cli import main as cli

TEXT = "the 12 1 2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_files.save(root / "gpt2", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    return root


@pytest.fixture
def flow(folder, monkeypatch, capfdbinary):
    """Run ``lrpx flow`` in this process: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(folder)

    def run(*arguments, stdin=b""):
        monkeypatch.setattr("sys.argv", ["lrpx", "flow", "-m", "gpt2", *arguments])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfdbinary.readouterr()
        return end.value.code or 0, out.decode("utf-8"), err.decode("utf-8")

    return run


def test_in_the_terminal(flow):
    code, out, err = flow(TEXT)
    assert (code, err) == (0, "")
    assert out.startswith("attnlrp: logit ")
    assert "kept: the fewest tokens with 90 % of each place's relevance" in out
    assert "logit to block.1" in out


def test_json_holds_what_the_library_returns(flow, folder):
    options = ["--method", "lrp", "--share", "0.7", "--between", "input", "--between", "...", "--between", "last"]
    code, out, _ = flow("--format", "json", "--target", "1", *options, stdin=TEXT.encode())
    assert code == 0
    found = lrpx.RelevanceFlow.from_dict(json.loads(out))
    expected = lrpx.Explainer(folder / "gpt2").flow(
        TEXT, target="1", method="lrp", share=0.7, between=("input", ..., "last")
    )
    np.testing.assert_array_equal(found.relevance, expected.relevance)
    assert found.places == expected.places
    code, out, _ = flow("--format", "json", TEXT, "--layers", "0", "--threshold", "0.01", "--target-id", "7")
    assert code == 0
    found = lrpx.RelevanceFlow.from_dict(json.loads(out))
    assert (found.places, found.target.id) == (["input", "block.0", "block.1"], 7)


def test_a_table_has_the_edges_and_texts_to_the_last_character(flow, folder):
    text = 'a,"b"\n\r שלום'  # this tokenizer splits each Hebrew letter
    assert flow(text, "--share", "1", "--target-id", "7", "-o", "f.csv") == (0, "", "")
    content = (folder / "f.csv").read_bytes().decode("utf-8")
    assert flow(text, "--share", "1", "--target-id", "7", "--format", "csv") == (0, content, "")
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    expected = lrpx.Explainer(folder / "gpt2").flow(text, target=7, share=1)
    table = expected.table()
    assert len(rows) == len(table.rows) == expected.edge_count
    numbers = {"upper_position": int, "lower_position": int, "relevance": float}
    found = [tuple(numbers.get(name, str)(value) for name, value in row.items()) for row in rows]
    assert found == table.rows
    columns = ["upper", "upper_position", "upper_text", "upper_token"]
    assert [rows[0][name] for name in columns] == ["logit", "-1", *(expected.target.shown, expected.target.text)]
    lowest = {int(row["lower_position"]): row["lower_text"] for row in rows if row["lower"] == "input"}
    assert "".join(lowest[i] for i in sorted(lowest)) == text


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("f.html", b"<!doctype html>"),
        ("f.png", b"\x89PNG"),
        ("f.pdf", b"%PDF"),
        ("f.svg", b"<?xml"),
        ("f.txt", b"attnlrp"),
    ],
)
def test_files(flow, folder, name, start):
    code, out, err = flow(TEXT, "-o", name)
    assert (code, out, err) == (0, "", "")
    assert (folder / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--share", "2"], "--share 2.0: give the share"),
        (["--share", "0.5", "--threshold", "1"], "are both given"),
        (["--target", "1", "--target-id", "7"], "give --target or --target-id, not both"),
        (["--between", "input"], "give two places or more"),
        (["--layers", "7"], "give numbers of blocks from 0 to 1"),
        (["--method", "alti-logit"], "there is no flow of it"),
        (["--format", "latex"], "latex is for lrpx explain; lrpx flow has terminal, json, csv, html, png, pdf, svg."),
        (["--target", "1", "--target", "12"], "--target is repeated, and lrpx flow follows one prediction"),
    ],
)
def test_wrong_use(flow, options, message):
    code, out, err = flow(TEXT, *options)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("format", ["json", "terminal"])
def test_a_note_is_one_line_where_no_header_shows_it(flow, monkeypatch, format):
    monkeypatch.setattr("lrpx.explainer.flow.averages_in_generate", lambda *_: ("Look at device='cpu'.",))
    code, out, err = flow(TEXT, "--target", "1", "--format", format)
    assert code == 0
    assert err == ("lrpx: note: Look at --device cpu.\n" if format == "json" else "")
    assert ("Look at --device cpu." if format == "terminal" else "Look at device='cpu'.") in out


def test_the_header_can_be_left_to_the_caption(flow, folder):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert flow(TEXT, "--no-header", "-o", "bare.svg")[0] == 0
    assert "<!-- attnlrp: logit" not in (folder / "bare.svg").read_text()
    code, _, err = flow(TEXT, "--no-header")
    assert code == 2
    assert "--no-header is for png, pdf, svg, and the format is terminal" in err


def test_what_a_user_says_to_a_chat_model(flow, folder):
    assert "needs a tokenizer with a chat template" in flow(TEXT, "--chat")[2].replace("need a", "needs a")
    template = "<s>{{ messages[0]['content'] }}{% if add_generation_prompt %} 2{% endif %}"
    (folder / "gpt2" / "chat_template.jinja").write_text(template)
    try:
        code, out, _ = flow(TEXT, "--chat", "--format", "json")
    finally:
        (folder / "gpt2" / "chat_template.jinja").unlink()
    assert code == 0
    assert lrpx.RelevanceFlow.from_dict(json.loads(out)).tokens[-1].endswith("2")


def test_one_method_at_a_time(flow):
    code, _, err = flow(TEXT, "--method", "lrp,attnlrp")
    assert code == 2
    assert "--method lrp,attnlrp: lrpx flow takes one method. Call it once for each." in " ".join(err.split())


def test_a_model_without_a_flow_is_answered_with_another_command(flow, folder, tmp_path):
    tiny_files.save(tmp_path / "classifier", GPT2ForSequenceClassification, tiny_files.CONFIGS["gpt2"])
    code, _, err = flow(TEXT, "-m", str(tmp_path / "classifier"))
    assert code == 2
    assert "Token relevance works: lrpx explain TEXT." in " ".join(err.split())
