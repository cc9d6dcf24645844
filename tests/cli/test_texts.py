"""Where ``lrpx explain`` reads its texts: arguments, standard input, text files, JSON lines, chats."""

import io
import json

import pytest

from lrpx.cli.texts import Asked, texts_of
from lrpx.errors import InputError


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Read the texts of a command: its arguments, what comes through a pipe, or a file of a given name and content."""

    def run(*arguments, stdin=None, name=None, content="", jsonl=None, chat=False):
        pipe = io.TextIOWrapper(io.BytesIO((stdin or "").encode()))
        pipe.isatty = lambda: stdin is None  # somebody sits at a keyboard
        monkeypatch.setattr("sys.stdin", pipe)
        file = None
        if name is not None:
            file = tmp_path / name
            file.write_text(content, encoding="utf-8")
        return texts_of(list(arguments), file, jsonl=jsonl, chat=chat)

    return run


def test_arguments(read):
    assert read("The keys") == [Asked("The keys")]
    assert [(asked.text, asked.origin) for asked in read("a", "-")] == [("a", "text 1"), ("-", "text 2")]


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input(read, arguments):
    found = read(*arguments, stdin="The keys\n\n to \n")
    assert found == [Asked("The keys", "standard input, line 1"), Asked(" to ", "standard input, line 3")]


def test_a_terminal_without_a_text_is_an_error(read):
    with pytest.raises(InputError, match=r'^no text given\. Type: lrpx explain "The keys to the cabinet"$'):
        read()


MESSAGES = [{"role": "user", "content": "Hi"}]
LINES = [
    ("a text", Asked("a text")),
    ({"text": "a"}, Asked("a")),
    ({"text": "a", "target": " is", "contrast": 7, "position": -1}, Asked("a", "", " is", 7, -1)),
    ({"text": "a", "target": None}, Asked("a")),
    ({"messages": MESSAGES, "target": "Hello"}, Asked(MESSAGES, "", "Hello")),
    ({"text": ""}, Asked("")),  # refused later, and only this one
]


def test_json_lines(read, tmp_path):
    content = "\n".join(json.dumps(line) for line, _ in LINES)
    expected = [
        Asked(a.text, f"--file {tmp_path / 'x.jsonl'}, line {n}", a.target, a.contrast, a.position)
        for n, (_, a) in enumerate(LINES, start=1)
    ]
    assert read(name="x.jsonl", content=content) == expected
    assert [a.text for a in read(name="x.JSONL", content=content)] == [a.text for a in expected]
    assert [a.text for a in read(stdin=content, jsonl=True)] == [a.text for a in expected]


def test_whether_lines_are_json_can_be_said(read):
    assert read(name="x.txt", content='{"text": "a"}')[0].text == '{"text": "a"}'
    assert read(name="x.txt", content='{"text": "a"}', jsonl=True)[0].text == "a"
    assert read(name="x.jsonl", content='{"text": "a"}', jsonl=False)[0].text == '{"text": "a"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON: .* Expected a string, or an object with"),
        ("[1, 2]", r"line 2: \[1, 2\] is no text. Give a string, or"),
        ("3", 'line 2: 3 is no text. Give a string, or {"text": "..."}.'),
        (
            '{"txt": "a"}',
            "line 2: unknown key 'txt'. Did you mean 'text'[?] Known: choices, contrast, messages, position",
        ),
        ('{"text": 3}', "line 2: text is 3. Give a string."),
        ('{"text": null}', "line 2: text is null. Give a string."),
        ('{"messages": "a"}', 'line 2: messages is "a". Give a list of chat messages.'),
        ('{"text": "a", "messages": []}', "line 2: give either text or messages; it has text, messages."),
        ('{"target": "a"}', "line 2: give either text or messages; it has target."),
        ("{}", "line 2: give either text or messages; it has nothing."),
        ('{"text": "a", "target": true}', "line 2: target is true. Give a string or a token id."),
        ('{"text": "a", "position": "x"}', 'line 2: position is "x". Give the index of a token.'),
    ],
)
def test_json_lines_that_cannot_be_used(read, line, message):
    with pytest.raises(InputError, match=message):
        read(name="x.jsonl", content=f'"a"\n{line}\n')


def test_chat_puts_texts_into_messages(read):
    content = json.dumps("Hi") + "\n" + json.dumps({"messages": MESSAGES})
    assert [asked.text for asked in read(name="x.jsonl", content=content, chat=True)] == [MESSAGES, MESSAGES]
    assert read("Hi", chat=True) == [Asked(MESSAGES)]


@pytest.mark.parametrize("texts", [("lrp",), ("The keys", "attnlrp")])
def test_the_name_of_a_method_is_no_text(read, texts):
    with pytest.raises(InputError, match=f"'{texts[-1]}' stands where a text is expected, .* --method {texts[-1]}"):
        read(*texts)
    assert read(stdin="lrp")[0].text == "lrp"
