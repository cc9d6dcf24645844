"""Where ``lrpx explain`` reads its texts: arguments, standard input, text files, JSON lines, chats."""

import io
import json

import pytest

from lrpx.cli.texts import InputText, one_text, texts_of
from lrpx.errors import InputError, LrpxWarning


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
    assert read("The keys") == [InputText("The keys")]
    assert [(asked.text, asked.origin) for asked in read("a", "-")] == [("a", "text 1"), ("-", "text 2")]


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input(read, arguments):
    found = read(*arguments, stdin="The keys\n\n to \n")
    assert found == [InputText("The keys", "standard input, line 1"), InputText(" to ", "standard input, line 3")]


def test_a_terminal_without_a_text_is_an_error(read):
    with pytest.raises(InputError, match=r'^no text given\. Type: lrpx explain "The keys to the cabinet"$'):
        read()


MESSAGES = [{"role": "user", "content": "Hi"}]
LINES = [
    ("a text", InputText("a text")),
    ({"text": "a"}, InputText("a")),
    ({"text": "a", "target": " is", "contrast": 7, "position": -1}, InputText("a", "", " is", 7, -1)),
    ({"text": "a", "target": None}, InputText("a")),
    ({"messages": MESSAGES, "target": "Hello"}, InputText(MESSAGES, "", "Hello")),
    ({"text": ""}, InputText("")),  # refused later, and only this one
]


def test_json_lines(read, tmp_path):
    content = "\n".join(json.dumps(line) for line, _ in LINES)
    expected = [
        InputText(a.text, f"--file {tmp_path / 'x.jsonl'}, line {n}", a.target, a.contrast, a.position)
        for n, (_, a) in enumerate(LINES, start=1)
    ]
    assert read(name="x.jsonl", content=content) == expected
    assert [a.text for a in read(name="x.JSONL", content=content)] == [a.text for a in expected]
    assert [a.text for a in read(stdin=content, jsonl=True)] == [a.text for a in expected]


def test_whether_lines_are_json_can_be_said(read):
    assert read(name="x.txt", content='{"text": "a"}', jsonl=False)[0].text == '{"text": "a"}'
    assert read(name="x.txt", content='{"text": "a"}', jsonl=True)[0].text == "a"
    assert read(name="x.jsonl", content='{"text": "a"}', jsonl=False)[0].text == '{"text": "a"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no JSON: .* in column 2. Expected a string, or an object with"),
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
    assert read("Hi", chat=True) == [InputText(MESSAGES)]


@pytest.mark.parametrize("texts", [("lrp",), ("The keys", "attnlrp")])
def test_the_name_of_a_method_is_no_text(read, texts):
    with pytest.raises(InputError, match=f"'{texts[-1]}' stands where a text is expected, .* --method {texts[-1]}"):
        read(*texts)
    assert read(stdin="lrp")[0].text == "lrp"


def test_a_text_that_is_the_name_of_a_file_is_noted(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my data.txt").write_text("The keys\n")
    with pytest.warns(LrpxWarning, match=r"a file of this name exists. To read it: --file 'my data.txt'$"):
        assert read("my data.txt") == [InputText("my data.txt")]
    with pytest.warns(LrpxWarning, match=r"To read it: lrpx flow < 'my data.txt'$"):
        assert one_text("my data.txt", "flow") == "my data.txt"
    assert one_text("a\0b", "flow") == "a\0b"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "text,label\nThe keys,1\n", r"t.csv is a table \(CSV\), .* called .jsonl.$"),
        ("t.tsv", "text\tlabel\n", r"a table \(TSV\)"),
        ("t.txt", '{"text": "The keys"}\n{"text": "a"}\n', "looks like JSON lines, .*: --jsonl$"),
        (
            "t.json",
            '[\n{"text": "The keys"}\n]\n',
            r"t.json is JSON, .* jq -c '.\[\]' .*t.json > .*t.jsonl, and --file .*t.jsonl$",
        ),
    ],
)
def test_lines_that_are_a_table_or_json_are_noted(read, name, content, message):
    with pytest.warns(LrpxWarning, match=message):
        assert len(read(name=name, content=content)) == len(content.splitlines())
    assert read(name=name, content=content, jsonl=False)  # asked for: no note


def test_json_lines_on_standard_input_are_noted(read):
    with pytest.warns(LrpxWarning, match="^standard input looks like JSON lines"):
        read(stdin='{"text": "The keys"}\n')


def test_lines_that_only_begin_like_json_are_texts(read):
    content = "[1] The keys\n{ to the cabinet\n[]\n7\n"
    assert len(read(name="t.txt", content=content)) == 4


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.txt"])
@pytest.mark.parametrize(
    ("made", "what"),
    [
        ({"schema": 1, "tokens": ["a"], "relevance": [1], "method": "lrp"}, "explanations"),
        ({"schema": 1, "kind": "flow"}, "a flow"),
        ([{"schema": 1, "tokens": ["a"], "relevance": [1], "method": "lrp"}], "explanations"),
    ],
)
def test_results_of_lrpx_are_no_texts(read, name, made, what):
    with pytest.raises(InputError, match=f"{name} holds {what} that lrpx wrote, and no texts"):
        read(name=name, content=json.dumps(made))


def test_one_text_of_several_lines_is_refused(read, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    with pytest.raises(InputError, match="2 lines with text, and lrpx flow takes one text"):
        one_text(None, "flow")


def test_a_file_that_is_not_utf8_says_the_line_and_how_to_convert_it(tmp_path):
    file = tmp_path / "a.txt"
    for content, message in [
        (
            "The keys\ncaf\xe9".encode("latin1"),
            r"byte 0xe9 in line 2. If it is Latin-1, .*: iconv -f latin1 -t utf-8 .*a.txt > ",
        ),
        (b"\x89PNG\0", "byte 0x89 in line 1, and zero bytes, as in a picture or a model. Give a file of text."),
        ("The keys".encode("utf-16"), "UTF-16. Convert it: iconv -f utf-16 -t utf-8 "),
    ]:
        file.write_bytes(content)
        with pytest.raises(InputError, match=message):
            texts_of(None, file, jsonl=None, chat=False)


def test_the_name_of_a_picture_is_noted_where_it_is_read_as_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").touch()
    for command in ("explain", "generate"):  # which note it when they know whether the model reads pictures
        assert one_text("cat.png", command) == "cat.png"
    with pytest.warns(LrpxWarning, match=r"'cat.png' is explained as a text, .*: lrpx explain --image cat.png"):
        one_text("cat.png", "flow")
    with pytest.warns(LrpxWarning, match="lrpx explain --image cat.png"):
        texts_of(["cat.png"], None, jsonl=None, chat=False, command="faithfulness")


def test_a_file_that_is_a_picture(tmp_path):
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(InputError, match=r"Give a file of text. To explain a picture: --image .*cat\.png$"):
        texts_of(None, tmp_path / "cat.png", jsonl=None, chat=False)
