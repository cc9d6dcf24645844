"""Where a command writes: never over what it reads."""

import io
import os

import pytest

from lrpx.cli.output import destination
from lrpx.errors import InputError

COMMANDS = [
    ("explain", "-f", "data.txt", "-o", "data.txt"),
    ("explain", "-f", "data.txt", "-o", "./link.txt"),
    ("explain", "--image", "data.txt", "--format", "json", "-o", "data.txt"),
    ("explain", "a", "-m", "data.txt", "-o", "data.txt"),
    ("generate", "a", "--image", "data.txt", "-o", "data.txt"),
    ("flow", "a", "-m", "data.txt", "-o", "data.txt"),
    ("similarity", "a", "b", "-m", "data.txt", "-o", "data.txt"),
    ("compare", "data.txt", "--format", "json", "-o", "data.txt"),
    ("faithfulness", "-f", "data.csv", "-o", "data.csv"),
    ("report", "runs", "-o", "runs/records/part-00000.parquet"),
]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_what_is_read_is_not_overwritten(lrpx_command, tmp_path, arguments):
    (tmp_path / "runs" / "records").mkdir(parents=True)
    files = [tmp_path / name for name in ("data.txt", "data.csv", "runs/records/part-00000.parquet")]
    for file in files:
        file.write_text("The keys\n")
    os.link(tmp_path / "data.txt", tmp_path / "link.txt")
    code, out, err = lrpx_command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("lrpx: --output ")
    assert "which is read. Give another name." in err
    assert [file.read_text() for file in files] == ["The keys\n"] * 3


@pytest.mark.parametrize(
    ("of", "given", "advice"),
    [
        ("heads", ["--output", "h.tex"], ["--output", "h.pdf"]),
        ("layers", ["--output", "h.csv"], ["--output", "h.html"]),
        ("heads", ["--output", "h.jsonl"], ["--output", "h.html"]),
        ("layers", ["--format", "latex"], ["--output", "heatmap.pdf"]),
        ("heads", ["--format", "csv"], ["--format", "html"]),
    ],
)
def test_what_is_advised_for_matrices_can_be_typed(lrpx_command, tmp_path, monkeypatch, of, given, advice):
    monkeypatch.chdir(tmp_path)
    code, _, err = lrpx_command("explain", "the keys", "--of", of, *given)
    assert (code, err.split(": ")[-1].split()) == (2, advice)
    assert lrpx_command("explain", "the keys", "--of", of, *advice)[0] == 0


@pytest.mark.parametrize("command", ["flow", "generate"])
def test_an_unknown_suffix_is_answered_with_those_of_the_command(lrpx_command, command):
    code, _, err = lrpx_command(command, "The keys", "-o", "x.md")
    assert code == 2
    assert "Use .json, .csv, .html, .png, .pdf, .svg, .txt" in " ".join(err.split())
    assert "latex is for lrpx explain" in lrpx_command(command, "The keys", "-o", "x.tex")[2]


def test_a_file_that_standard_input_comes_from_is_not_overwritten(tmp_path, monkeypatch):
    file = tmp_path / "data.txt"
    file.write_text("The keys\n")
    with file.open() as redirected:
        monkeypatch.setattr("sys.stdin", redirected)
        with pytest.raises(InputError, match="what standard input is read from"):
            destination(None, file)
        assert destination(None, tmp_path / "other.txt")[1] == tmp_path / "other.txt"
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert destination(None, file)[1] == file
