"""The page about the command line agrees with the code: formats, suffixes, options, commands and lines of JSON."""

import re
from pathlib import Path

import pytest
import typer

from lrpx.cli.main import app
from lrpx.cli.output import ENDINGS, Format
from lrpx.cli.texts import texts_of
from lrpx.cli.wording import options_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command_line.md").read_text(encoding="utf-8")


def test_its_lines_of_json_are_read(tmp_path):
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "x.jsonl").write_text(block, encoding="utf-8")
    first, second = texts_of(None, tmp_path / "x.jsonl", jsonl=None, chat=False)
    assert (first.text, first.target, first.contrast) == ("The keys to the cabinet", " are", " is")
    assert (second.text[0]["role"], second.target) == ("user", "Yes")


def test_it_names_every_format_and_suffix():
    table = PAGE.split("## Output")[1].split("## Exit")[0]
    assert {f.value for f in Format} <= set(re.findall(r"`(\w+)`", table))
    suffixes = {usual for usual, *_ in ENDINGS.values()}
    assert {s for s in suffixes if s[1:] not in Format.__members__} <= set(re.findall(r"`(\.\w+)`", table))


@pytest.mark.parametrize("option", sorted(set(re.findall(r"--[a-z][a-z-]*", PAGE))))
def test_its_options_exist(option):
    command = typer.main.get_command(app)
    assert option in {*options_of([command]).values(), "--help"}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`lrpx (\w+)", PAGE))))
def test_its_commands_exist(name):
    assert name in typer.main.get_command(app).commands
