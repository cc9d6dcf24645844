"""The command line as a person meets it: what it writes, where, and with which exit status."""

import csv
import inspect
import io
import json
import logging
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import tiny_files
import typer
from support import slow_but
from transformers import BertForMaskedLM, GPT2LMHeadModel, XLNetConfig, XLNetLMHeadModel

import lrpx
from lrpx.check import Report
from lrpx.cli import main as cli
from lrpx.errors import InputError
from lrpx.methods import METHODS

TEXT = "the 12"  # five tokens of tiny_files' tokenizer: "t", "he", " ", "12"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_files.save(root / "gpt2", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    tiny_files.save(root / "bert", BertForMaskedLM, tiny_files.CONFIGS["bert"])
    return root


@pytest.fixture
def lrpx_command(models, monkeypatch, capfdbinary):
    """Run ``lrpx`` in this process: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(models)

    def run(*arguments, stdin=b"", model="gpt2"):
        command, *rest = arguments or ("",)
        chosen = ["-m", model] if command == "explain" and model else []
        monkeypatch.setattr("sys.argv", ["lrpx", *arguments[:1], *chosen, *rest])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfdbinary.readouterr()
        return end.value.code or 0, out.decode("utf-8"), err.decode("utf-8")

    return run


def texts_of(out):
    return [e["text"] for e in json.loads(out)]


# Formats


def test_heads_are_in_json_and_html_if_asked(lrpx_command):
    for given, there in (([], False), (["--heads"], True)):
        _, out, _ = lrpx_command("explain", TEXT, "--target", " the", "--format", "json", *given)
        [e] = json.loads(out)
        assert [e[name] is not None for name in ("by_head", "by_attention", "by_mlp", "by_layer")] == [there] * 4
        _, out, _ = lrpx_command("explain", TEXT, "--target", " the", "--format", "html", *given)
        assert ("Per head" in out) == there
    code, _, err = lrpx_command("explain", TEXT, "--method", "gradient", "--heads")
    assert code == 2
    assert "--heads is for lrp, attnlrp, lrp-uniform-gate, gradient-x-input" in " ".join(err.split())


def test_the_terminal_is_the_default(lrpx_command):
    code, out, err = lrpx_command("explain", TEXT, "--target", " the", "--contrast", "12")
    assert (code, err) == (0, "")
    assert out.startswith("attnlrp: logit")
    assert '"he"' in out


def test_json_holds_what_the_library_returns(lrpx_command, models):
    code, out, _ = lrpx_command("explain", TEXT, "--format", "json", "--target", "12")
    assert code == 0
    expected = lrpx.explain(models / "gpt2", None, TEXT, target="12")
    (found,) = map(lrpx.Explanation.from_dict, json.loads(out))
    assert np.array_equal(found.relevance, expected.relevance)
    assert (found.target, found.text, found.tokens) == (expected.target, TEXT, expected.tokens)


def test_json_is_always_a_list(lrpx_command):
    assert texts_of(lrpx_command("explain", TEXT, "--format", "json")[1]) == [TEXT]
    assert texts_of(lrpx_command("explain", TEXT, "the", "--format", "json")[1]) == [TEXT, "the"]
    both = json.loads(lrpx_command("explain", TEXT, "--method", "lrp", "--method", "gradient", "--format", "json")[1])
    assert [e["method"] for e in both] == ["lrp", "gradient"]
    assert texts_of(lrpx_command("explain", "-f", "-", "--format", "json", stdin=b"the\n")[1]) == ["the"]


def test_json_lines_are_always_one_object_each(lrpx_command, tmp_path):
    one = lrpx_command("explain", TEXT, "--format", "jsonl")[1].splitlines()
    assert [json.loads(line)["text"] for line in one] == [TEXT]
    lrpx_command("explain", TEXT, "the", "--method", "lrp", "--method", "gradient", "-o", str(tmp_path / "x.jsonl"))
    several = [lrpx.Explanation.from_dict(json.loads(line)) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [(e.text, e.method) for e in several] == [
        (text, method) for text in (TEXT, "the") for method in ("lrp", "gradient")
    ]


@pytest.mark.filterwarnings("default")
def test_lines_of_a_file_are_named_in_csv_and_notes(lrpx_command, tmp_path):
    """A blank line, and one that cannot be explained, have no explanation; the others keep their numbers."""
    (tmp_path / "x.jsonl").write_text(
        f'{json.dumps(TEXT)}\n\n{{"text": {json.dumps(TEXT)}, "position": 999}}\n{json.dumps(TEXT + " [MASK]")}\n'
    )
    code, out, err = lrpx_command(
        "explain", "-f", str(tmp_path / "x.jsonl"), "--method", "lrp,gradient", "--format", "csv"
    )
    assert code == 1
    rows = list(csv.DictReader(out.splitlines()))
    assert list(dict.fromkeys((row["line"], row["explanation"], row["method"]) for row in rows)) == [
        ("1", "0", "lrp"),
        ("1", "1", "gradient"),
        ("4", "2", "lrp"),
        ("4", "3", "gradient"),
    ]
    assert "x.jsonl, line 3: position 999" in err
    assert "x.jsonl, line 4: the text has '[MASK]'" in err
    assert "text[" not in err


def test_lines_of_a_file_are_told_what_to_write_in_them(lrpx_command, tmp_path):
    """In Python a list of ids would do as well."""
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": TEXT, "target": "  12"}) + "\n")
    code, _, err = lrpx_command("explain", "-f", str(tmp_path / "x.jsonl"))
    assert code == 2
    assert re.search(r'x.jsonl, line 1: "target": "  12" is .* Give "target": "12", which is one token\.\n$', err), err


def test_csv_has_a_row_for_each_token(lrpx_command, tmp_path):
    code, out, err = lrpx_command("explain", TEXT, "--method", "lrp,gradient", "--format", "csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(out.splitlines()))
    expected = json.loads(lrpx_command("explain", TEXT, "--method", "lrp,gradient", "--format", "json")[1])
    assert [(r["method"], float(r["relevance"])) for r in rows] == [
        (e["method"], relevance) for e in expected for relevance in e["relevance"]
    ]
    assert lrpx_command("explain", TEXT, "--method", "lrp,gradient", "-o", str(tmp_path / "x.csv"))[0] == 0
    assert (tmp_path / "x.csv").read_text() == out
    assert "line" not in rows[0]
    pieces = list(csv.DictReader(io.StringIO(lrpx_command("explain", "a,\r\n1", "--format", "csv")[1], newline="")))
    assert "".join(r["text"] for r in pieces) == "a,\r\n1"  # a line that ends inside a cell
    code, _, err = lrpx_command("explain", TEXT, "--of", "layers", "--format", "csv")
    assert (code, "csv has a row for each token" in err) == (2, True)


def test_saved_explanations_side_by_side(lrpx_command, tmp_path):
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    lrpx_command("explain", TEXT, "--method", "lrp,attnlrp", "-o", a)
    lrpx_command("explain", TEXT, "--method", "gradient", "-o", b)
    code, out, err = lrpx_command("compare", a, b)
    assert (code, err) == (0, "")
    head = next(line for line in out.splitlines() if line.startswith("position"))
    assert head.split() == ["position", "lrp", "attnlrp", "gradient", "text"]
    assert out == lrpx_command("explain", TEXT, "--method", "lrp,attnlrp,gradient")[1]
    lines = str(tmp_path / "lines.jsonl")
    lrpx_command("explain", TEXT, "--method", "lrp,attnlrp,gradient", "-o", lines)
    assert lrpx_command("compare", lines)[1] == out
    code, _, err = lrpx_command("compare", b)
    assert code == 2
    assert "no text is explained twice" in err


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("--of", "heads"), "relevance of heads, which was not asked for. Ask for it: lrpx explain TEXT --heads"),
        (("--of", "layers"), "relevance of layers, which was not asked for. Ask for it: lrpx explain TEXT --heads"),
        (("--head", "0,1"), "relevance of heads, which was not asked for. Ask for it: lrpx explain TEXT --heads"),
        (("--of", "neurons"), "of modules by their names: lrpx explain TEXT --at input --at '"),
    ],
)
def test_what_saved_explanations_lack_is_asked_for_where_they_are_made(lrpx_command, tmp_path, asked, message):
    a = str(tmp_path / "a.json")
    lrpx_command("explain", TEXT, "--method", "lrp,attnlrp", "-o", a)
    code, _, err = lrpx_command("compare", a, *asked)
    assert code == 2
    assert message in " ".join(err.split())


def test_a_picture_of_heads_by_two_methods(lrpx_command):
    code, _, err = lrpx_command("explain", TEXT, "--method", "lrp,attnlrp", "--of", "heads", "-o", "x.png")
    assert code == 2
    assert "Give one text and one method, or write a page, which holds several: --output maps.html" in " ".join(
        err.split()
    )
    assert lrpx_command("explain", TEXT, "--method", "lrp,attnlrp", "--of", "heads", "-o", "maps.html")[0] == 0


def test_layers_heads_and_neurons(lrpx_command, tmp_path):
    code, out, err = lrpx_command("explain", TEXT, "--of", "heads")
    assert (code, err) == (0, "")
    assert "relevance of each head" in out
    code, out, _ = lrpx_command("explain", TEXT, "--head", "0,1", "--method", "lrp")
    assert code == 0
    assert "head 1 of layer 0" in out
    for given, message in [
        (["--of", "layer"], "Did you mean 'layers'"),
        (["--of", "neurons"], "--of neurons needs modules"),
        (["--head", "3"], "--head 3,5"),
        (["--head", "0,1", "--of", "layers"], "--of layers is given"),
        (
            ["--of", "layers", "--format", "json"],
            "--of layers is for what is drawn, and json holds all numbers. Leave it out",
        ),
        (
            ["--head", "0,1", "--format", "json"],
            "--head 0,1 is for what is drawn, and json holds all numbers. Leave it out",
        ),
        (
            ["--head", "0,1", "--format", "csv"],
            "--head 0,1 is for what is drawn, and csv has a row for each token. Type",
        ),
        (["--of", "heads", "--format", "latex"], "Type: --output heatmap.pdf"),
    ]:
        code, _, err = lrpx_command("explain", TEXT, *given)
        assert code == 2
        assert message in err


def test_methods_of_a_text_stand_together_and_once(lrpx_command):
    methods = ["--method", "lrp", "--method", "gradient", "--method", "lrp"]
    found = json.loads(lrpx_command("explain", "the", "12", *methods, "--format", "json")[1])
    assert [(e["text"], e["method"]) for e in found] == [
        ("the", "lrp"),
        ("the", "gradient"),
        ("12", "lrp"),
        ("12", "gradient"),
    ]


PICTURES = (".png", ".pdf", ".svg")
STARTS = {
    ".json": b"[{",
    ".jsonl": b'{"schema"',
    ".html": b"<!doctype html>",
    ".tex": b"%",
    ".png": b"\x89PNG",
    ".pdf": b"%PDF",
    ".svg": b"<?xml",
    ".txt": b"attnlrp: logit",
}


@pytest.mark.parametrize("suffix", slow_but(STARTS, ".html", ".tex"))
def test_the_suffix_of_the_output_is_the_format(lrpx_command, tmp_path, suffix):
    if suffix in PICTURES:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for name in ("x" + suffix, "X" + suffix.upper()):
        code, out, _ = lrpx_command("explain", TEXT, "the é", "-o", str(tmp_path / name))
        assert (code, out) == (0, "")
        content = (tmp_path / name).read_bytes()
        assert content.startswith(STARTS[suffix]) or (suffix == ".tex" and b"\\documentclass" in content)
        if suffix not in PICTURES:
            content.decode("utf-8")


def test_a_format_goes_before_the_suffix(lrpx_command, tmp_path):
    lrpx_command("explain", TEXT, "--format", "json", "-o", str(tmp_path / "x.data"))
    assert texts_of((tmp_path / "x.data").read_text()) == [TEXT]


@pytest.mark.parametrize(
    ("command", "format", "name", "right"),
    [
        (("explain", TEXT), "json", "x.html", "x.json"),
        (("explain", TEXT), "html", "x.md", "x.html"),
        (("explain", TEXT), "terminal", "x.json", "x.txt"),
        (("compare", "a.json"), "html", "x.parquet", "x.html"),
        (("flow", TEXT), "png", "x.jpg", "x.png"),
        (("generate", TEXT), "csv", "x.xlsx", "x.csv"),
        (("similarity", TEXT, TEXT), "html", "x.PDF", "x.html"),
        (("report", "run"), "html", "x.pdf", "x.html"),
        (("report", "run"), "csv", "x.txt", "x.csv"),
    ],
)
def test_a_format_and_a_suffix_of_another_one_are_refused(
    lrpx_command, tmp_path, monkeypatch, command, format, name, right
):
    monkeypatch.chdir(tmp_path)
    code, _, err = lrpx_command(*command, "--format", format, "-o", name)
    assert (code, err) == (
        2,
        f"lrpx: --format {format} does not go with --output {name}, which is called like another format. "
        f"Type: --output {right}\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["json", "jsonl", "html", "latex", "terminal"])
def test_standard_output_is_the_same_as_a_file(lrpx_command, tmp_path, format):
    target = tmp_path / "x"
    lrpx_command("explain", "the é 🤗", "--format", format, "-o", str(target))
    for arguments in ([], ["-o", "-"]):
        code, out, _ = lrpx_command("explain", "the é 🤗", "--format", format, *arguments)
        assert code == 0
        if format != "terminal":  # which is as wide as the terminal
            assert out == target.read_text(encoding="utf-8")


def test_fragments_for_a_page_and_for_a_paper(lrpx_command, models):
    """The same as in Python, to the letter."""
    e = lrpx.explain(models / "gpt2", None, TEXT, target=" the", heads=False)
    page, paper, lua = (
        lrpx_command("explain", TEXT, "--target", " the", "--fragment", "--format", *options)[1]
        for options in (["html"], ["latex"], ["latex", "--engine", "lualatex"])
    )
    assert page == lrpx.heatmap.html_fragment(e)
    assert page.startswith("<style>")
    assert "<html" not in page
    assert paper == e.to_latex(fragment=True)
    assert lua == e.to_latex(fragment=True, engine="lualatex") != paper
    whole = lrpx_command("explain", TEXT, "--target", " the", "--format", "latex", "--engine", "pdflatex")[1]
    assert whole == e.to_latex()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fragment"], "--fragment is for html and latex, and the format is terminal."),
        (["--fragment", "-o", "x.png"], "--fragment is for html and latex, and the format is png."),
        (["--engine", "lualatex", "-o", "x.html"], "--engine is for latex, and the format is html."),
        (
            ["--engine", "lualatexx", "-o", "x.tex"],
            "unknown engine 'lualatexx'. Did you mean 'lualatex'? Known: lualatex, pdflatex.",
        ),
    ],
)
def test_options_of_documents_that_do_not_go_with_the_format(lrpx_command, options, message):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    code, out, err = lrpx_command("explain", TEXT, *options, model="nowhere")  # before a model is looked for
    assert (code, out, err) == (2, "", f"lrpx: {message}\n")


@pytest.mark.filterwarnings("ignore:the .* far less probable")  # as likely as random weights have it
@pytest.mark.filterwarnings("ignore:target and contrast have different numbers of tokens")
def test_a_header_says_what_to_type_as_the_command_does(lrpx_command):
    arguments = ["explain", TEXT, "--target", "the the", "--contrast", "12 the the the"]
    for format in ("terminal", "html"):
        _, out, _ = lrpx_command(*arguments, "--format", format)
        assert "--objective logprob" in " ".join(out.split())
        assert "objective=" not in out
    (saved,) = json.loads(lrpx_command(*arguments, "--format", "json")[1])
    assert 'use objective="logprob"' in " ".join(saved["notes"])  # read by Python


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_a_picture_needs_a_file_and_matplotlib(lrpx_command, monkeypatch, kind):
    code, _, err = lrpx_command("explain", TEXT, "--format", kind)
    assert (code, err) == (2, f"lrpx: {kind} needs a file: --output heatmap.{kind}\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = lrpx_command("explain", TEXT, "-o", f"x.{kind}")
    assert (code, err) == (2, f"lrpx: {kind} needs matplotlib: pip install matplotlib pandas networkx\n")


# Texts


def test_a_file_holds_one_text_per_line(lrpx_command, tmp_path):
    path = tmp_path / "texts"
    for content in (b"the\n\n  \n 12 \n", b"\xef\xbb\xbfthe\r\n\r\n 12 \r\n", b"the\n 12 "):
        path.write_bytes(content)
        for code, out, _ in (
            lrpx_command("explain", "-f", str(path), "--format", "json"),
            lrpx_command("explain", "--file", "-", "--format", "json", stdin=content),
        ):
            assert code == 0
            assert texts_of(out) == ["the", " 12 "]


def test_line_separators_inside_a_text_do_not_split_it(lrpx_command):
    text = "the\u2028\x0b12"
    assert texts_of(lrpx_command("explain", "-f", "-", "--format", "json", stdin=text.encode() + b"\n")[1]) == [text]


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ([], b"", 'lrpx: no text given, and standard input is empty. Type: lrpx explain "The keys to the cabinet"'),
        (["-"], b"", "lrpx: standard input holds no text; expected one per line."),
        (["the", "-f", "-"], b"the", "lrpx: give texts as arguments or with --file, not both."),
        (["the", "--jsonl"], b"the", "lrpx: --jsonl is about the lines of --file or of standard input, and texts are"),
        (["-f", "-"], b"\n \n", "lrpx: standard input holds no text; expected one per line."),
        (
            ["-f", "-"],
            b"\xff\xfe",
            "lrpx: standard input is not UTF-8 text: UTF-16. Convert it: iconv -f utf-16 -t utf-8 FILE > utf8.txt",
        ),
        (["-f", "none.txt"], b"", "lrpx: --file none.txt cannot be read: No such file or directory."),
        (["-f", "."], b"", "lrpx: --file . cannot be read: Is a directory."),
        ([""], b"", "lrpx: the text '' is empty."),
        (["\udcff"], b"", r"lrpx: the text is not valid Unicode: '\udcff' at character 0"),
        (
            ["lrp"],
            b"",
            "lrpx: 'lrp' stands where a text is expected, and is the name of a method. Type --method before",
        ),
        (["t" * 65], b"", "lrpx: the text has 65 tokens, 1 more than the 64 that GPT2LMHeadModel can read."),
    ],
)
def test_texts_that_cannot_be_explained(lrpx_command, arguments, stdin, message):
    code, out, err = lrpx_command("explain", *arguments, stdin=stdin)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1  # one line, no traceback


def test_what_comes_through_a_pipe(lrpx_command):
    for arguments in ([], ["-"], ["--file", "-"]):
        code, out, _ = lrpx_command("explain", *arguments, "--format", "json", stdin=b"the\n12\n")
        assert (code, texts_of(out)) == (0, ["the", "12"])


def test_a_line_has_its_own_target(lrpx_command, tmp_path):
    lines = [{"text": TEXT, "target": "12", "contrast": 7}, "the", {"text": TEXT, "position": 0, "target": 9}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["--file", str(tmp_path / "x.jsonl"), "--target", " the", "--format", "jsonl"]
    code, out, _ = lrpx_command("explain", *arguments)
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [e["text"] for e in found] == [TEXT, "the", TEXT]
    assert [(e["target"][1], e["contrast"] and e["contrast"][0], e["position"]) for e in found[:2]] == [
        ("12", 7, 3),
        (found[1]["target"][1], None, 1),
    ]
    assert (found[2]["target"][0], found[2]["position"]) == (9, 0)


def test_a_line_that_cannot_be_read_stops_the_whole_file(lrpx_command, tmp_path):
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(TEXT)}\n{{no JSON\n")
    code, out, err = lrpx_command("explain", "--file", str(tmp_path / "x.jsonl"), "--format", "jsonl")
    assert (code, out) == (2, "")
    assert "line 2 is no JSON" in err


@pytest.mark.parametrize("how", ["arguments", "file"])
def test_of_several_texts_those_that_can_be_explained_are(lrpx_command, tmp_path, how):
    """The others are named, each by its line, and the exit status says so."""
    (tmp_path / "x.jsonl").write_text('"the"\n\n" "\n"12"\n')
    texts, where = ["the", " ", "12"], "text 2"
    if how == "file":
        texts, where = ["--file", str(tmp_path / "x.jsonl")], f"--file {tmp_path / 'x.jsonl'}, line 3"
    code, out, err = lrpx_command("explain", *texts, "--format", "json")
    *explained, failure = json.loads(out)
    assert (code, texts_of(json.dumps(explained))) == (1, ["the", "12"])
    assert err == f"lrpx: {where}: the text ' ' is empty. Give at least one word.\n"
    assert (failure["kind"], failure["index"], failure["text"]) == ("failure", 1, " ")
    lines = lrpx_command("explain", *texts, "--format", "jsonl")[1].splitlines()
    assert list(map(json.loads, lines)) == [*explained, failure]
    for format in ("html", "terminal", "latex"):
        drawn = lrpx_command("explain", *texts, "--format", format)[1]
        said = f"1 text could not be explained: {where.rpartition(', ')[2]}."
        assert " ".join(drawn.replace("\\ ", " ").split()).count(said) == 1
    assert lrpx_command("explain", " ", "", "--format", "json")[:2] == (2, "")


def test_advice_about_a_line_is_written_as_in_the_line(lrpx_command, tmp_path):
    """An option would not help where the line has its own value."""
    (tmp_path / "x.jsonl").write_text('{"text": "the", "target": 100000}\n{"text": "the"}\n')
    code, _, err = lrpx_command("explain", "--file", str(tmp_path / "x.jsonl"), "--contrast-id", "200000")
    first, second = err.splitlines()
    assert code == 2
    assert 'line 1: "target": 100000 is outside the vocabulary' in first
    assert "line 2: --contrast-id 200000 is outside the vocabulary" in second


def test_a_chat(lrpx_command):
    code, out, err = lrpx_command("explain", "the", "--chat")
    assert (code, out) == (2, "")
    told = "chat messages need a tokenizer with a chat template; this one has none. Give a text, without --chat."
    assert err.strip() == f"lrpx: {told}"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("format", ["json", "terminal"])
def test_a_note_is_one_line_where_no_header_shows_it(lrpx_command, monkeypatch, format):
    monkeypatch.setattr("lrpx.explainer.texts.mistakes", lambda *_: ("Look at device='cpu'.",))
    code, out, err = lrpx_command("explain", TEXT, "--format", format)
    assert code == 0
    assert err == ("lrpx: note: Look at --device cpu.\n" if format == "json" else "")
    assert ("Look at --device cpu." if format == "terminal" else "Look at device='cpu'.") in out


def test_warnings_of_others_are_shown_as_usual(lrpx_command, monkeypatch):
    def warning(*_, **__):
        warnings.warn("of another library", FutureWarning, stacklevel=1)
        raise InputError("the end")

    monkeypatch.setattr("lrpx.models.loading.load", warning)
    with pytest.warns(FutureWarning, match="of another library"):
        assert lrpx_command("explain", TEXT)[2] == "lrpx: the end\n"


# Options


def test_targets_as_texts_or_ids(lrpx_command):
    (found,) = json.loads(
        lrpx_command("explain", TEXT, "--target-id", "3", "--contrast-id", "5", "--format", "json")[1]
    )
    assert (found["target"][0], found["contrast"][0]) == (3, 5)
    (found,) = json.loads(lrpx_command("explain", TEXT, "--contrast", "12", "--position", "0", "--format", "json")[1])
    assert (found["contrast"][1], found["position"]) == ("12", 0)


def test_several_predictions_of_one_text(lrpx_command, models):
    given = ["--target", "12", "--target", " the", "--contrast-id", "7", "--position", "0", "--position", "2"]
    for text in ([TEXT], []):
        found = json.loads(lrpx_command("explain", *text, *given, "--format", "json", stdin=TEXT.encode())[1])
        expected = lrpx.explain(
            models / "gpt2", None, TEXT, target=["12", " the"], contrast=7, position=[0, 2], heads=False
        )
        assert [lrpx.Explanation.from_dict(e).relevance.tolist() for e in found] == [
            e.relevance.tolist() for e in expected
        ]
    code, out, _ = lrpx_command("explain", TEXT, "--target", "12", "--target", " the")
    assert code == 0
    assert 'logit "12"' in out
    assert 'logit " the"' in out
    code, out, err = lrpx_command("explain", TEXT, "the", "--target", "12", "--target", " the")
    assert (code, out) == (2, "")
    assert err.startswith(
        "lrpx: --target is repeated, which is for one text, and there are 2. In JSON lines, each text"
    )


def test_places_and_norms(lrpx_command):
    blocks = ["--at", "input", "--at", "transformer.h.0"]
    (found,) = json.loads(lrpx_command("explain", TEXT, *blocks, "--format", "json")[1])
    assert np.shape(found["layers"]["transformer.h.0"]) == (4, 32)
    gradient = ["--method", "gradient", "--method", "lrp", "--norm", "l2", "--format", "json"]
    found = json.loads(lrpx_command("explain", TEXT, *gradient)[1])
    assert [e["provenance"]["options"].get("norm") for e in found] == ["l2", None]
    (found,) = json.loads(lrpx_command("explain", TEXT, "--method", "alti-logit", "--direct", "--format", "json")[1])
    assert found["components"]["direct"] == 0


def test_dtype_and_device(lrpx_command):
    (found,) = json.loads(lrpx_command("explain", TEXT, "--dtype", "float64", "--device", "cpu", "--format", "json")[1])
    assert (found["provenance"]["dtype"], found["provenance"]["device"]) == ("float64", "cpu")


def test_verbose_says_what_is_loaded(lrpx_command):
    code, _, err = lrpx_command("explain", TEXT, "-v")
    assert code == 0
    assert "GPT2LMHeadModel" in err


def test_what_is_logged_is_one_line_in_the_words_of_the_command(lrpx_command, monkeypatch):
    """Of every command, also those without --verbose."""

    def logs(*_, **__):
        logging.getLogger("lrpx.any").warning("it does not fit, once more (checkpoint=%s)", True)
        raise InputError("the end")

    monkeypatch.setattr("lrpx.report.write", logs)
    code, out, err = lrpx_command("report", "runs")
    assert (code, out) == (2, "")
    assert err == "lrpx: note: it does not fit, once more (--checkpoint)\nlrpx: the end\n"
    assert all(type(handler) is logging.NullHandler for handler in logging.getLogger("lrpx").handlers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "atnlrp"], "lrpx: unknown method 'atnlrp'. Did you mean 'attnlrp'?"),
        (["--method", "lrp", "--method", ""], "lrpx: unknown method ''. Known: "),
        (["--format", "htlm"], "lrpx: unknown format 'htlm'. Did you mean 'html'?"),
        (
            ["-o", "x.htm"],
            "lrpx: --output x.htm: no format goes with the suffix '.htm'. Use .json, .jsonl, .csv, .html, .tex",
        ),
        (["-o", "."], "lrpx: --output . is a folder. Give a file name in it."),
        (["-o", "none/x.html"], "lrpx: --output none/x.html: the folder "),
        (["--target", "a", "--target-id", "3"], "lrpx: give --target or --target-id, not both."),
        (["--contrast", "a", "--contrast-id", "3"], "lrpx: give --contrast or --contrast-id, not both."),
        (["--target-id", "264"], "lrpx: --target-id 264 is outside the vocabulary: ids go from 0 to 263."),
        (["--target", "  12"], "lrpx: --target '  12' is "),
        (["--objective", "p"], 'lrpx: --objective p: give "logit" or "logprob".'),
        (["--target", "12", "--contrast", "12"], "lrpx: target '12' and contrast '12' are the same token"),
        (["--position", "4"], "lrpx: position 4 is outside the text, which has 4 tokens: 0 to 3, or -4 to -1."),
        (
            ["--norm", "l2"],
            "lrpx: --norm l2 is for gradient, smoothgrad, and the method is attnlrp. Leave it out, or choose another method: ",
        ),
        (
            ["--direct"],
            "lrpx: --direct is for alti-logit, and the method is attnlrp. Leave it out, or choose another method: ",
        ),
        (["--norm", "l3", "--method", "gradient"], "lrpx: unknown norm 'l3'. Did you mean 'l2'?"),
        (["--at", "transformer.h.9"], "lrpx: --at transformer.h.9 matches no module. Did you mean 'transformer.h.0'?"),
        (["--dtype", "flaot32"], "lrpx: unknown dtype 'flaot32'. Did you mean 'float32'?"),
        (["--device", "gpu9"], "lrpx: "),
        (["--batch-tokens", "0"], "lrpx: --batch-tokens 0: give a number of tokens from 1"),
    ],
)
def test_options_that_cannot_be_used(lrpx_command, arguments, message):
    code, out, err = lrpx_command("explain", TEXT, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize("model", ["none/at/all", "./none", "smolm2-135m.gguf"])
def test_an_unknown_model(lrpx_command, monkeypatch, model):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = lrpx_command("explain", TEXT, model=model)
    assert (code, out) == (2, "")
    assert err.startswith(f"lrpx: {model}")
    assert "Traceback" not in err


def test_a_masked_model_needs_a_mask(lrpx_command):
    code, _, err = lrpx_command("explain", TEXT, model="bert")
    assert code == 2
    assert err.startswith("lrpx: a masked language model predicts what stands in place of a mask token (")
    assert lrpx_command("explain", "the <|endoftext|> 12", model="bert")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [["explain", "the", "--position", "x"], ["explain", "the", "--nothing"], ["nothing"], ["check", "a", "b"]],
)
def test_usage_errors(lrpx_command, arguments):
    code, out, err = lrpx_command(*arguments)
    assert (code, out) == (2, "")
    assert "Try 'lrpx" in err
    assert "Traceback" not in err


# Help


@pytest.mark.parametrize("arguments", [[], ["explain"], ["methods"], ["check"]])
def test_help_fits_into_80_columns(lrpx_command, arguments):
    code, out, _ = lrpx_command(*arguments, "--help", model=None)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "Usage: lrpx" in out
    for line in out.splitlines():  # an option's explanation has room: most of the line is not taken by its names
        if line.startswith("│ --"):
            assert len(line.rstrip(" │")) > 40 or line.count(" ") < 60


def test_help_names_every_option(lrpx_command):
    out = lrpx_command("explain", "--help", model=None)[1]
    for (
        name
    ) in "file target contrast target-id contrast-id position method at norm direct model dtype device token".split():
        assert f"--{name} " in out
    for name in "attn-implementation revision batch-tokens format output verbose jsonl chat".split():
        assert f"--{name} " in out


def commands(group=cli.app, path=()):
    """Every command of the command line: (its words, its function)."""
    for command in group.registered_commands:
        yield [*path, command.name or command.callback.__name__], command.callback
    for subgroup in group.registered_groups:
        yield from commands(subgroup.typer_instance, (*path, subgroup.name))


@pytest.mark.parametrize(("words", "function"), [pytest.param(*c, id=" ".join(c[0])) for c in commands()])
def test_every_option_is_called_as_its_parameter(lrpx_command, monkeypatch, words, function):
    """Whatever typer makes of a metavar: some releases name an option without a name after it, ``--FORMAT``."""
    options = {
        name: parameter.annotation.__metadata__[0]
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if parameter.annotation is not typer.Context
        and isinstance(parameter.annotation.__metadata__[0], typer.models.OptionInfo)
    }
    monkeypatch.setenv("COLUMNS", "160")
    out = lrpx_command(*words, "--help", model=None)[1]
    for name, option in options.items():
        long = "--" + name.replace("_", "-")
        assert long in str(option.default).split("/")  # the first name, where typer keeps it
        assert re.search(rf"{long}(?![\w-])", out)
    assert not re.search(r"--\w*[A-Z]", out)


def test_no_command_shows_the_help(lrpx_command, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lrpx"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code in (0, 2)  # by the version of click


def test_version(lrpx_command):
    assert lrpx_command("--version") == (0, f"lrpx {lrpx.__version__}\n", "")


def test_methods_lists_all_with_their_sources(lrpx_command):
    code, out, _ = lrpx_command("methods")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for method in METHODS.values():
        assert method.name in out
    assert "Arras et al. 2025" in out
    assert "granularity" not in out


@pytest.mark.parametrize("width", [80, 60])
def test_methods_at_length(lrpx_command, monkeypatch, width):
    """A row per method, as wide as a terminal, none of it cut off."""
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = lrpx_command("methods", "--long")
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    body = out.split("\n\n", 1)[1]
    for method in METHODS.values():
        (row,) = re.findall(rf"^{method.name}(\*?) +(.+)$", body, flags=re.M)
        star, cells = row
        assert (star == "*") != method.traits.in_paper
        answers = [method.traits.linear_norms, method.traits.constant_attention]
        answers += [method.traits.through_mlps, method.traits.decomposes]
        assert cells.split()[-4:] == [{True: "yes", False: "no", None: "–"}[answer] for answer in answers]
    assert "Table 1 of Arras et al. 2025" in " ".join(body.split())


# Ends


def test_an_interrupt_is_no_traceback(lrpx_command, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lrpx.models.loading.load", interrupted)
    code, out, err = lrpx_command("explain", TEXT)
    assert code == 130
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize("there", [True, False])
def test_an_interrupted_evaluation_says_what_is_kept(lrpx_command, monkeypatch, tmp_path, there):
    def interrupted(*_, **__):
        if there:
            (tmp_path / "run").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("lrpx.evaluation.run.evaluate_all", interrupted)
    code, out, err = lrpx_command("evaluate", "sva", "--model", "gpt2", "--out", str(tmp_path / "run"))
    assert code == 130
    assert (out, "Traceback" in err) == ("", False)
    assert ("Stopped. What is finished is kept in" in err) == there
    assert ("the same command goes on from there" in err) == there


@pytest.mark.parametrize("format", ["terminal", "json"])
def test_a_reader_that_goes_away_is_no_error(lrpx_command, monkeypatch, format):
    reading, writing = os.pipe()
    os.close(reading)
    closed = open(writing, "w", closefd=False)  # noqa: SIM115
    monkeypatch.setattr("sys.stdout", closed)
    code, _, err = lrpx_command("explain", TEXT, "--format", format)
    monkeypatch.undo()
    os.close(writing)
    assert code == 0
    assert err == ""


def test_a_full_disk_is_one_line(lrpx_command, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    (tmp_path / "x.html").write_text("before")
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    code, _, err = lrpx_command("explain", TEXT, "-o", str(tmp_path / "x.html"))
    expected = f"lrpx: could not write {tmp_path}/x.html: No space left on device. What was there before is kept.\n"
    assert (code, err) == (2, expected)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("x.html", "before")]


def test_a_bug_is_a_traceback(lrpx_command, monkeypatch):
    monkeypatch.setattr("lrpx.models.loading.load", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("sys.argv", ["lrpx", "explain", TEXT])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_markup_in_an_error_is_shown_as_it_is(lrpx_command):
    code, _, err = lrpx_command("explain", TEXT, "--at", "[b]x[/b]")
    assert code == 2
    assert err.startswith("lrpx: --at '[b]x[/b]' matches no module.")


# Rules


def test_a_rule_for_layers_with_weights(lrpx_command, models):
    arguments = ("--method", "lrp", "--method", "attnlrp", "--rules", "alpha1beta0", "--format", "json")
    found = json.loads(lrpx_command("explain", TEXT, *arguments)[1])
    for e, method in zip(found, ("lrp", "attnlrp"), strict=True):
        assert e["provenance"]["options"]["rules"] == f"{method}+alpha1beta0"
        expected = lrpx.explain(models / "gpt2", None, TEXT, method=method, rules="alpha1beta0")
        np.testing.assert_allclose(e["relevance"], expected.relevance)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rules", "gama=0.25"], "lrpx: unknown rule set 'gama=0.25'. Did you mean 'gamma=0.25'?"),
        (
            ["--method", "gradient", "--rules", "gamma"],
            "lrpx: --rules gamma is for lrp, attnlrp, lrp-uniform-gate, and the method is gradient. Leave it out, or choose",
        ),
    ],
)
def test_a_rule_that_is_none_is_refused_before_the_model_is_loaded(lrpx_command, monkeypatch, arguments, message):
    monkeypatch.setattr("lrpx.models.loading.load", lambda *_, **__: 1 / 0)
    code, out, err = lrpx_command("explain", TEXT, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)


# lrpx check


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_check_of_a_sound_model(lrpx_command, model):
    code, out, err = lrpx_command("check", model)
    assert (code, err) == (0, "")
    assert "FAILS" not in out
    assert out.count("holds") >= 5
    assert "layer_norm" in out


def test_check_of_a_model_that_is_not_explained(lrpx_command, models):
    config = XLNetConfig(vocab_size=tiny_files.VOCABULARY, d_model=16, n_layer=1, n_head=2, d_inner=16, pad_token_id=0)
    tiny_files.save(models / "xlnet", XLNetLMHeadModel, config)
    code, out, _ = lrpx_command("check", "xlnet")
    assert code == 1
    assert out.startswith("FAILS XLNetLMHeadModel ")


def test_check_shows_every_finding_as_it_is(lrpx_command, monkeypatch):
    lines = [(True, "a [batch, tokens]"), (None, "only told"), (False, "[b]not so[/b]")]
    monkeypatch.setattr("lrpx.check.check", lambda *_: Report(lines=lines))
    shown = "holds a [batch, tokens]\nnote  only told\nFAILS [b]not so[/b]\n"
    verdict = "gpt2: 1 check failed. Do not rely on its explanations.\n"
    for given in (["gpt2"], ["-m", "gpt2"], ["--model", "gpt2"]):
        assert lrpx_command("check", *given) == (1, shown + verdict, "")
    monkeypatch.setattr("lrpx.check.check", lambda *_: Report(lines=lines[:2]))
    assert lrpx_command("check", "gpt2")[1].endswith("note  only told\ngpt2 can be explained: all checks hold.\n")
    assert lrpx_command("check", "gpt2", "-m", "bert")[2].startswith(
        "lrpx: two models are given: gpt2 and --model bert."
    )
    monkeypatch.setattr("lrpx.check.check", lambda *_: Report(lines=lines[:2]))
    assert lrpx_command("check", "gpt2")[0] == 0


def test_check_of_a_model_that_cannot_be_checked(lrpx_command, monkeypatch):
    report = Report(lines=[(None, "XModel reads nothing random")], checked=False)
    monkeypatch.setattr("lrpx.check.check", lambda *_: report)
    code, out, err = lrpx_command("check", "gpt2")
    assert (code, err) == (2, "")
    assert out == (
        "note  XModel reads nothing random\ngpt2: lrpx check cannot check this model, for the reason above, which says "
        "nothing about its explanations.\n"
    )


def test_check_of_no_model(lrpx_command):
    code, out, err = lrpx_command("check", "./none")
    assert (code, out) == (2, "")
    assert err.startswith("lrpx: ./none: no such file or folder.")


# How maps are drawn


def test_views_are_chosen_on_the_command_line(lrpx_command):
    code, out, _ = lrpx_command("explain", TEXT, "--scale", "1e-9", "--hide", "first", "--numbers", "--format", "html")
    assert code == 0
    assert "beyond the scale (" in out
    assert "hidden: " in out
    assert out.count("<small>") > 2
    _, plain, _ = lrpx_command("explain", TEXT, "--group", "words", "--scale", "max")
    assert '"the"' in plain  # of the tokens "t" and "he"
    ends = {"red and blue": "CD1A26", "orange and purple": "CC6200"}
    for palette, end in ends.items():
        _, text, _ = lrpx_command("explain", TEXT, "--palette", palette, "--format", "latex")
        assert [colour for colour in ends.values() if colour in text.upper()] == [end]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--scale", "high"), "--scale high: give 'robust', 'max' or a number above 0."),
        (("--hide", "last"), "--hide last: give 'special', 'first' or both."),
        (("--group", "letters"), "--group letters: give 'tokens' or 'words'."),
        (("--palette", "green"), "--palette green: give 'red and blue' or 'orange and purple'."),
    ],
)
def test_a_wrong_view_is_refused_before_a_model_is_loaded(lrpx_command, given, message):
    code, out, err = lrpx_command("explain", TEXT, *given, model="nowhere")
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_the_guide_lists_every_command():
    guide = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")
    names = typer.main.get_command(cli.app).commands
    assert len(names) > 9
    assert [name for name in names if f"`lrpx {name}`" not in guide] == []
