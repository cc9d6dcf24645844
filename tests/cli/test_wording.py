"""What the library says to type, as the command line has it; over every message that there is."""

import ast
import re
from pathlib import Path

import pytest
import typer

import lrpx
from lrpx.cli.main import app
from lrpx.cli.wording import in_command_syntax, options_of, running_commands

OPTIONS = options_of([typer.main.get_command(app)])


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ("explain the first piece: target=359 ('are').", "explain the first piece: --target-id 359 ('are')."),
        ("Give target=' are', which is one token", "Give --target ' are', which is one token"),
        ("contrast=7 or contrast='x'", "--contrast-id 7 or --contrast x"),
        ("Type device='cpu'.", "Type --device cpu."),
        ('in a wider dtype: dtype="float32".', "in a wider dtype: --dtype float32."),
        ("batch_tokens=0: give a number", "--batch-tokens 0: give a number"),
        ("or give position=.", "or give --position."),
        ("Say which: position=-3.", "Say which: --position -3."),
        ("device_map='auto' or attn_implementation='sdpa'", "--device-map auto or --attn-implementation sdpa"),
        ("recomputed (checkpoint=True)", "recomputed (--checkpoint)"),
        ("fast=False", "--no-fast"),
        ("explainer(text, target=[...])", "explainer(text, --target ...)"),
        ("give target=[first, second]", "give --target [first, second]"),
        ("at=['input', 'h.*'] is", "--at input --at 'h.*' is"),
        ("target=' \\'s' is", """--target ' '"'"'s' is"""),
    ],
)
def test_advice_is_what_one_types(python, command):
    assert in_command_syntax(python, OPTIONS) == command


@pytest.mark.parametrize(
    "message",
    [
        "the text 'target=5' is empty",
        "the text \"device='cpu'\" has",
        "x.target=3",
        "nothing=3 is known",
        "--limit=3",
        "x#seed=3",
    ],
)
def test_what_is_no_advice_stays(message):
    assert in_command_syntax(message, OPTIONS) == message


def test_options_of_methods_are_typed_as_the_running_command_has_them():
    """``faithfulness`` has a ``--steps`` of its own; in ``explain`` it is an option of a method."""
    root = typer.main.get_command(app)
    message = "steps=0: give a number of steps from 1. Or baseline='zero', seed=3, rules='lrp'."
    expected = (
        "--option steps=0: give a number of steps from 1. Or --option baseline=zero, --option seed=3, --rules lrp."
    )
    explain = options_of(running_commands(root, ["--plugin", "x.py", "explain", "faithfulness"]))
    assert in_command_syntax(message, explain) == expected
    faithfulness = options_of(running_commands(root, ["faithfulness", "--steps", "0"]))
    assert in_command_syntax("steps=0: give", faithfulness) == "--steps 0: give"
    assert options_of(running_commands(root, [])) == OPTIONS


def test_a_contraction_opens_no_quotation():
    """The apostrophe in "model's" begins no text."""
    assert in_command_syntax("the model's own: dtype='float32'", OPTIONS) == "the model's own: --dtype float32"


SOURCE = Path(lrpx.__file__).parent
SAYS = {"InputError", "LrpxError", "UnsupportedModelError", "NonFiniteError", "ImportError", "warn", "warning", "info"}
# What only Python has: nobody who types a command can be told of these.
PYTHON_ONLY = set(
    "attention_type conditions count errors explains filters gamma kind layers level measures methods module n noise num_labels "
    "num_return_sequences page palette predicted prompt_length skip_bad_rows spans tokenizer top unknown weights".split()
)


def messages():
    """Every text with which the library complains, with a 3 wherever something is filled in."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in SAYS:
                for argument in (*node.args, *(k.value for k in node.keywords if k.arg == "python")):
                    yield path.relative_to(SOURCE), node.lineno, as_text(argument)


def as_text(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "3" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_every_name_that_a_message_gives_a_value_is_an_option():
    """Or something that cannot come up on the command line."""
    found = {
        (name, f"{path}:{line}")
        for path, line, text in messages()
        for name in re.findall(r"(?<![\w.\-'\"{*#])([a-z][a-z0-9_]*)=(?!=)", text)
    }
    assert len({name for name, _ in found}) > 15  # a scan that finds something
    assert {(name, where) for name, where in found if name not in OPTIONS and name not in PYTHON_ONLY} == set()


def test_no_message_keeps_the_syntax_of_python():
    known = "|".join(OPTIONS)
    left = [
        (str(path), line, text)
        for path, line, text in messages()
        if re.search(rf"(?<![\w.\-'\"])(?<!--option )({known})=", in_command_syntax(text, OPTIONS))
    ]
    assert left == []
