"""What errors advise on the command line: what one can type there, and nothing that only Python has."""

import json

import pytest
import typer

from lrpx.cli.app import _listen
from lrpx.cli.main import app
from lrpx.cli.output import look_of
from lrpx.cli.texts import one_text
from lrpx.cli.wording import in_command_syntax, options_of
from lrpx.errors import InputError, nearest
from lrpx.results.compare import compare

OPTIONS = options_of([typer.main.get_command(app)])
WROTE = "Give what lrpx explain wrote: lrpx explain TEXT -o a.json"


def refused(call, *given, **options):
    with pytest.raises(InputError) as error:
        call(*given, **options)
    return in_command_syntax(error.value.in_command, OPTIONS)


def test_advice_for_the_command_line_is_apart():
    error = InputError("a=3 is wrong.", python="Type: f(3)", app="Choose one.", command="Type: --a 3")
    assert (str(error), error.in_app) == ("a=3 is wrong. Type: f(3)", "a=3 is wrong. Choose one.")
    assert error.in_command == "a=3 is wrong. Type: --a 3"
    assert InputError("a.", python="b.").in_command == "a. b."
    assert InputError("a.", python="b.", command="").in_command == "a."
    moved = error.at("x.json")
    assert (str(moved), moved.in_command) == ("x.json: a=3 is wrong. Type: f(3)", "x.json: a=3 is wrong. Type: --a 3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is no file."),
        ("{", "is not JSON: "),
        ('"a"', "holds a JSON str, not an explanation."),
        ('{"schema": 1, "kind": "flow"}', "not an explanation, but a flow."),
        ('{"schema": 1, "kind": "generation"}', "not one explanation, but generated text."),
        ('{"schema": 1}', "no tokens with relevance."),
        ('{"schema": 1}\n{"schema": 1}\n', ", line 1: not a saved explanation: it has no tokens with relevance."),
    ],
)
def test_what_cannot_be_compared(tmp_path, content, message):
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content)
    said = refused(compare, file)
    assert message in said
    assert said.endswith(WROTE)


def test_json_lines_are_read_line_by_line(tmp_path):
    e = {"schema": 1, "method": "lrp"}
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, [e, e])))
    assert "x.jsonl, line 1: not a saved explanation" in refused(compare, tmp_path / "x.jsonl")


def test_heads_and_spans_are_shown_as_they_are_typed():
    assert in_command_syntax("head=(99, 99): give", OPTIONS) == "--head 99,99: give"


def test_names_with_commas_are_quoted_in_a_list():
    assert nearest("x", ["car, automobile", "cat"]) == "Known: 'car, automobile', cat."


def test_a_far_name_is_not_suggested():
    assert "Did you mean" not in nearest("foo", ["float", "half"])


@pytest.mark.parametrize("rule", ["gamma=abc", "epsilon="])
def test_a_rule_with_no_number(lrpx_command, rule):
    code, _, err = lrpx_command("explain", "a", "--rules", rule)
    assert code == 2
    assert "is no number. Give one, as in" in err


def test_a_host_that_is_not_there_is_no_matter_of_the_port():
    said = refused(_listen, "300.1.1.1", 7860)
    assert said.startswith("--host 300.1.1.1: ")
    assert "--port" not in said


def test_hidden_tokens_with_commas():
    assert look_of("robust", ["first,special"], "tokens", None, "red and blue", True).hide == ("first", "special")


def test_images_come_first_in_what_a_user_says():
    parts = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "What?"}]
    assert one_text("What?", "generate", chat=True, images=2) == [{"role": "user", "content": parts}]
    assert one_text("What?", "generate", chat=True) == [{"role": "user", "content": "What?"}]
