"""What the page says of an error, over every error that the library can raise below the app."""

import ast
import re
from pathlib import Path

import pytest

import lrpx
from lrpx.app.wording import FIELDS, in_words_of_page, on_page
from lrpx.errors import InputError, import_optional

SOURCE = Path(lrpx.__file__).parent
# Nothing here is called by the app while it answers: other commands, loading, saved files, and questions that it does not ask.
NOT_ASKED = re.compile(
    r"(cli|report|evaluation|benchmark)/|models/(adapters|default/|device_map|hub|loading|locate|options|usable)|"
    r"explainer/(api|flow|likeliest|once|similarity)|passes/(flow|places|embeddings)|"
    r"results/|heatmap/(__init__|flow|pairs)|check\.py|files\.py"
)
# Arguments that the page does not have: what is said of them cannot come up there.
NOT_ON_THE_PAGE = set(
    "alpha at attn_implementation baseline between continuation dtype error explains gamma group head header heads hops layers "
    "measures noise num_labels num_return_sequences numbers of pooling prompt_length role rules scale seed spans steps "
    "target_prefix top unknown weights module".split()
)
CODE = re.compile(r"Type:|\w\(text|lrpx\.[A-Za-z]|`|_pretrained|model\.[a-z_]+\(|docs/|explainer")


def errors():
    """Path, line, problem and advice for the app of every error, with a 3 wherever something is filled in."""
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        if NOT_ASKED.match(where):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = isinstance(node, ast.Call) and getattr(node.func, "id", "")
            if name and name.endswith("Error") and node.args and hasattr(lrpx.errors, name):
                advice = [keyword.value for keyword in node.keywords if keyword.arg == "app"]
                yield where, node.lineno, as_text(node.args[0]), "".join(map(as_text, advice))


def as_text(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "3" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_no_error_on_the_page_has_code_in_it():
    found = list(errors())
    assert len(found) > 150  # a scan that finds something
    assert [each for each in found if CODE.search(each[2] + each[3])] == []


def test_every_argument_that_an_error_names_is_a_field_of_the_page():
    found = {
        (name, f"{where}:{line}")
        for where, line, *texts in errors()
        for text in texts
        for name in re.findall(r"(?<![\w.\-'\"{*#])([a-z][a-z0-9_]*)=(?!=)", text)
    }
    assert len({name for name, _ in found}) > 15
    assert {(name, where) for name, where in found if name not in FIELDS and name not in NOT_ON_THE_PAGE} == set()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("target='LABLE' is no label.", "“Explain” 'LABLE' is no label."),
        ("Say which: position=3.", "Say which: “Position” 3."),
        ("Put one in, or give position=.", "Put one in, or give “Position”."),
        ("hide=['first'] leaves nothing", "what “View” hides leaves nothing"),
        ("the text 'target=5' is empty", "the text 'target=5' is empty"),
        (
            'cannot be compared: use objective="logprob".',
            "cannot be compared: use as many tokens in “and not” as in “Explain”.",
        ),
        ("nothing=3", "nothing=3"),
    ],
)
def test_arguments_are_named_as_fields(message, said):
    assert in_words_of_page(message) == said


def test_an_error_says_what_to_do_where_it_is_read():
    error = InputError("no text is given.", python="Type: explainer(text).", app="Type one in “Text”.")
    assert str(error) == "no text is given. Type: explainer(text)."
    assert on_page(error) == "no text is given. Type one in “Text”."
    assert (
        on_page(InputError("contrast='b' is no label.", python="Leave contrast out.")) == "“and not” 'b' is no label."
    )
    assert on_page(ValueError("two\nlines")) == "two lines"
    assert on_page(ValueError()) == "ValueError"


def test_an_error_that_was_pickled_says_the_same():
    """As those of workers are."""
    import pickle

    error = pickle.loads(pickle.dumps(InputError("no text.", python="Type one.", app="Write one.")))
    assert (str(error), error.in_app) == ("no text. Type one.", "no text. Write one.")


def test_what_is_not_installed_is_said_with_how_to_install_it():
    with pytest.raises(ImportError) as raised:
        import_optional("no_such_module", 'method="lime"', extra="captum")
    assert on_page(raised.value) == '“Methods” "lime" needs no_such_module: pip install captum'
