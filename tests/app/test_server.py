"""What the app answers, by Starlette's client: the numbers of the library, and its errors in one line."""

import base64
import io
import json
import re
from functools import partial

import anyio
import app_tools
import numpy as np
import pytest
import tiny_tokenizers
from support import slow_but

import lrpx
from lrpx.app import server
from lrpx.app.desk import Desk, Limits
from lrpx.app.downloads import TYPES
from lrpx.app.queue import Queue
from lrpx.heatmap import Look
from lrpx.heatmap.numbers import MINUS
from lrpx.heatmap.view import view
from lrpx.models.signature import ModelSignature

TEXT = app_tools.TEXT
ASKED = {"text": TEXT, "target": " are", "contrast": " is", "methods": ["attnlrp", "lrp", "alti-logit"]}


@pytest.fixture(scope="module")
def client(desk):
    return app_tools.client(desk)


@pytest.fixture
def ask(client):
    return partial(app_tools.events, client)


def test_about(client):
    about = client.get("/api/about").json()
    assert about["kinds"] == ["text", "chat"]
    assert about["space_counts"] is True
    assert (about["task"], about["max_tokens"], about["benchmark"]) == ("causal", 40, None)
    assert list(about["methods"]) == list(lrpx.METHODS)
    assert list(about["formats"]) == list(TYPES)


def test_the_maps_are_those_of_the_library(desk, ask):
    answers = ask("explain", ASKED)
    [grid] = app_tools.one(answers, "maps")["grids"]
    assert [row["method"] for row in grid["rows"]] == ASKED["methods"]
    assert "outside the tokens" in grid["rows"][2]["sums"][1]
    for row in grid["rows"]:
        parts = [float(part.rsplit(" ", 1)[1].replace(MINUS, "-")) for part in row["sums"]]
        assert sum(parts) == pytest.approx(float(row["what"].rsplit(" = ", 1)[1].replace(MINUS, "-")), abs=2e-3)
        e = desk.explainer(TEXT, target=" are", contrast=" is", method=row["method"])
        v = view(e, Look())
        assert row["numbers"] == [v.number(value, MINUS) for value in e.relevance]
        assert row["what"].endswith(v.equals(MINUS))
    assert [column["positions"] for column in grid["columns"]] == [[i] for i in range(5)]
    assert [column["explained"] for column in grid["columns"]] == [False] * 4 + [True]
    assert [event["method"] for event in answers if event["event"] == "working"] == ASKED["methods"]


def test_the_likeliest_tokens_and_what_was_chosen(desk, ask):
    shown = app_tools.one(ask("explain", ASKED), "predictions")
    best = desk.explainer.likeliest(TEXT, 24)
    e = desk.explainer(TEXT, target=" are", contrast=" is")
    ids = [token["id"] for token in shown["tokens"]]
    asked = {e.target.id, e.contrast.id}
    assert set(ids[:2]) == asked  # above the others, and not among them
    assert ids[2:] == [token.id for token, _ in best if token.id not in asked]
    assert (shown["target"]["id"], shown["contrast"]["id"]) == (e.target.id, e.contrast.id)
    p = {token["id"]: token["p"] for token in shown["tokens"]}
    assert p[e.target.id] == pytest.approx(e.target_probability)
    assert p[e.contrast.id] == pytest.approx(e.contrast_probability)
    second = best[1].token.id
    assert app_tools.one(ask("explain", {"text": TEXT, "target": second}), "predictions")["target"]["id"] == second


def test_one_scale_for_methods_that_are_parts_of_the_logit(ask):
    asked = ASKED | {"methods": ["attnlrp", "lrp"]}
    own, shared = (
        app_tools.one(ask("explain", asked | {"shared_scale": yes}), "maps")["grids"][0]["rows"]
        for yes in (False, True)
    )
    assert own[0]["ticks"] != own[1]["ticks"]
    assert shared[0]["ticks"] == shared[1]["ticks"]
    assert shared[0]["ticks"] in (own[0]["ticks"], own[1]["ticks"])
    assert content(ask, "html", asked)[1] != content(ask, "html", asked | {"shared_scale": True})[1]
    other = ask("explain", asked | {"shared_scale": True, "methods": ["lrp", "gradient"]})
    assert "gradient: not parts of the logit, so there is no common scale" in other[-1]["message"]


def test_tokens_are_hidden_and_joined_to_words(ask):
    look = {"hide": ["first"], "group": "words"}
    [grid] = app_tools.one(ask("explain", {"text": "The keysx", **look}), "maps")["grids"]
    assert [("".join(column["pieces"]), column["hidden"]) for column in grid["columns"]] == [
        ("The", True),
        ("keysx", False),
    ]
    assert grid["columns"][1]["positions"] == [1, 2]


def test_a_chat_is_read_with_the_template(desk, ask):
    messages = [{"role": "user", "content": "The keys"}]
    [grid] = app_tools.one(ask("explain", {"kind": "chat", "messages": messages}), "maps")["grids"]
    tokens = desk.explainer(messages).tokens
    assert sum(len(column["positions"]) for column in grid["columns"]) == len(tokens)


@pytest.mark.parametrize("method", ["attnlrp", "alti-logit"])
def test_layers_and_heads_of_a_token(desk, ask, method):
    e = desk.explainer(TEXT, target=" are", contrast=" is", method=method)
    for positions, chosen in (([1], [1]), ([0, 2], [0, 2]), ([], slice(None))):
        found = app_tools.one(
            ask("inside", {"question": ASKED | {"methods": [method]}, "positions": positions}), "inside"
        )
        heads = e.by_head[..., chosen].sum(-1)
        shown = np.array([[float(text.replace(MINUS, "-")) for text in row] for row in found["heads"]["numbers"]])
        np.testing.assert_allclose(shown, heads, atol=2e-3 * np.abs(heads).max())
        assert found["layers"]["names"] == (
            ["attention"] if method == "alti-logit" else ["attention", "MLP", "all it adds"]
        )
    assert found["text"] == "all tokens"


def test_generated_tokens_are_explained_as_the_library_does(desk, ask):
    found = app_tools.one(ask("generate", {"question": {"text": TEXT}, "count": 5}), "generated")
    g = desk.explainer.generate(TEXT, max_new_tokens=5)
    assert found["ids"] == g.token_ids[g.prompt_length :]
    asked = {"text": TEXT, "continuation": found["ids"]}
    assert app_tools.one(ask("reply", asked), "generated") == found
    for span, expected in (([2, 3], g[2]), ([1, 4], g.span(1, 4))):
        [grid] = app_tools.one(ask("explain", asked | {"span": span}), "maps")["grids"]
        v = view(expected, Look())
        assert grid["rows"][0]["numbers"] == [v.number(cell.value, MINUS) for cell in v.cells]
    likeliest = app_tools.one(ask("explain", asked | {"span": [2, 3]}), "predictions")
    assert likeliest["tokens"][0]["id"] == likeliest["target"]["id"] == found["ids"][2]  # generated greedily


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("explain", {"text": " "}, "the text ' ' is empty"),
        ("explain", {"text": "The " * 41}, "the input has .* tokens, and this app explains up to 40. Shorten it"),
        ("explain", {"text": TEXT, "target": " are here"}, None),
        ("explain", {"text": TEXT, "position": 99}, "position"),
        ("explain", {"text": TEXT, "target": 10**9}, "vocabulary"),
        ("explain", {"kind": "image"}, "does not read image here, but text, chat"),
        ("explain", {"kind": "sample", "sample": 3}, "does not read sample here"),
        ("explain", {"kind": "chat", "messages": []}, "the chat is empty"),
        ("explain", {"text": "\ud800"}, "not valid Unicode"),
        ("generate", {"question": {"text": TEXT}, "count": 7}, "this app generates from 1 to 6"),
        ("generate", {"question": {"text": TEXT}, "count": "7"}, "count is no whole number"),
        ("generate", {"text": TEXT}, "expected a JSON object with question, count"),
        ("inside", {"question": {"text": TEXT}, "positions": [5]}, "the text has 5 tokens"),
        ("inside", {"question": {"text": TEXT}, "positions": "1"}, "positions is no list"),
        ("download", {"question": {"text": TEXT}, "format": "exe"}, "unknown format 'exe'"),
        ("browse", {}, "there is no benchmark. Start the app with --benchmark DIR"),
    ],
)
def test_errors_are_one_line(ask, name, data, message):
    answers = ask(name, data)
    if message is None:  # several tokens as target are explained
        assert answers[-1] == {"event": "end"}
        return
    failed = [each for event in answers if event["event"] == "failed" for each in event["methods"]]
    text = failed[0]["message"] if failed else answers[-1]["message"]
    assert "\n" not in text
    assert re.search(message, text), text


def test_what_the_model_cannot_read_is_not_helped_by_a_larger_limit():
    """The limit that is told is that of the page's header: the smaller one."""
    desk = app_tools.desk(limits=Limits(tokens=10**6))
    most = desk.most_tokens
    asked = {"text": "The " * (most + 1)}
    message = app_tools.events(app_tools.client(desk), "explain", asked)[-1]["message"]
    assert re.search(rf"and this app explains up to {most:,}\. Shorten it\.$", message), message
    desk = app_tools.desk(limits=Limits(tokens=3))
    message = app_tools.events(app_tools.client(desk), "explain", {"text": "The The The The The"})[-1]["message"]
    assert re.search(r"explains up to 3\. Shorten it, or start the app with --max-tokens \d+\.$", message), message


def test_a_method_that_cannot_answer_does_not_keep_the_others(ask):
    found = app_tools.one(ask("generate", {"question": {"text": TEXT}, "count": 3}), "generated")
    asked = {"text": TEXT, "continuation": found["ids"], "span": [0, 2], "methods": ["lrp", "alti"]}
    answers = ask("explain", asked)
    assert [row["method"] for row in app_tools.one(answers, "maps")["grids"][0]["rows"]] == ["lrp"]
    [failed] = app_tools.one(answers, "failed")["methods"]
    assert failed["method"] == "alti"
    assert "does not decompose" in failed["message"]


def test_what_nobody_thought_of_is_said_too(desk, monkeypatch, client, caplog):
    monkeypatch.setattr(desk, "likeliest", lambda question: 1 / 0)
    [event] = app_tools.events(client, "explain", {"text": TEXT})
    assert event == {"event": "error", "message": "ZeroDivisionError: division by zero"}
    assert "the app could not answer a question" in caplog.text


@pytest.mark.parametrize(
    ("body", "message"), [(b"{", "is not JSON"), (b"[" * 100_000, "is not JSON"), (b"\xff", "is not JSON")]
)
def test_a_body_that_is_no_json(client, body, message):
    answer = client.post("/api/explain", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_a_body_that_is_too_large(client, monkeypatch):
    monkeypatch.setattr(server, "LARGEST_BODY", 1000)
    answer = client.post("/api/explain", json={"text": "A" * 2000})
    assert (answer.status_code, "larger than" in answer.json()["error"]) == (400, True)


def content(ask, kind, question=ASKED):
    event = app_tools.one(ask("download", {"question": question, "format": kind}), "file")
    return event, base64.b64decode(event["data"])


def test_downloads_hold_all_methods(desk, ask, tmp_path):
    event, html = content(ask, "html")
    assert event["name"] == "lrpx.html"
    assert all(method in html.decode() for method in ASKED["methods"])
    event, source = content(ask, "latex")
    assert event["name"] == "lrpx.tex"
    assert b"\\documentclass" in source
    (tmp_path / "e.json").write_bytes(content(ask, "json")[1])
    found = lrpx.Explanations.load(tmp_path / "e.json")
    assert [e.method for e in found] == ASKED["methods"]
    expected = desk.explainer(TEXT, target=" are", contrast=" is", method=ASKED["methods"])
    for e, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(e.relevance, other.relevance)


def test_a_table_is_that_of_the_library(desk, ask):
    pd = pytest.importorskip("pandas")
    found = pd.read_csv(io.BytesIO(content(ask, "csv")[1]), keep_default_na=False, dtype={"relevance": str})
    found["relevance"] = found["relevance"].map(float)
    expected = desk.explainer(TEXT, target=" are", contrast=" is", method=ASKED["methods"]).to_frame()
    assert found["position"].tolist() == [*range(5)] * 3
    assert list(found.columns) == list(expected.columns.drop("input"))
    for name in found.columns:
        assert found[name].tolist() == expected[name].tolist()


@pytest.mark.parametrize(
    ("kind", "start"), slow_but([("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")], ("png", b"\x89PNG"))
)
def test_pictures(ask, kind, start):
    pytest.importorskip("matplotlib")
    assert content(ask, kind, {"text": TEXT})[1].startswith(start)


def test_explanations_are_computed_once_and_forgotten_when_they_are_many(desk, monkeypatch):
    from lrpx.app import desk as module
    from lrpx.app.question import question_of

    own = Desk(desk.explainer, Limits(40, 6))
    computed = []
    monkeypatch.setattr(own, "_explained", lambda q, m: computed.append(m) or Desk._explained(own, q, m))
    first, second = question_of({"text": TEXT}), question_of({"text": "The key", "group": "words"})
    assert own.explanation(first, "lrp") is own.explanation(first, "lrp")
    assert computed == ["lrp"]
    monkeypatch.setattr(module, "REMEMBERED", 1)
    own.explanation(second, "lrp")
    own.explanation(first, "lrp")
    assert computed == ["lrp"] * 3


def test_a_client_that_leaves_is_forgotten():
    """While it waits at once; while something is computed, as soon as that is done, and nothing more is computed for it."""
    queue, asked, told = Queue(), [], []

    async def ask(desk, data, tell):
        asked.append(data)
        await tell({"event": "working"})
        await anyio.sleep_forever()

    async def connect(data, left):
        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            events = [json.loads(row) for row in message.get("body", b"").decode().splitlines()]
            told.extend((data, event.get("ahead", event["event"])) for event in events)

        await server.Events(None, queue, ask, data)({}, receive, send)

    async def main():
        left = [anyio.Event() for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for n in range(3):
                tasks.start_soon(connect, n, left[n])
                await anyio.wait_all_tasks_blocked()
            left[1].set()
            await anyio.wait_all_tasks_blocked()
            assert asked == [0]
            left[0].set()
            await anyio.wait_all_tasks_blocked()
            assert asked == [0, 2]
            left[2].set()
        assert len(queue) == 0

    anyio.run(main)
    assert told == [(0, "working"), (1, 1), (2, 2), (2, 1), (2, 0), (2, "working")]


def test_a_masked_model_and_one_without_a_chat_template():
    tokenizer = tiny_tokenizers.word_piece()
    desk = Desk(lrpx.Explainer(tiny_tokenizers.bert(tokenizer), tokenizer), Limits(tokens=40))
    client = app_tools.client(desk)
    about = client.get("/api/about").json()
    assert (about["kinds"], about["mask"], about["generates"]) == (["text"], "[MASK]", False)
    assert about["space_counts"] is False  # " are" and "are" are one token
    answers = app_tools.events(client, "explain", {"text": "the keys [MASK] here", "methods": ["lrp"]})
    [grid] = app_tools.one(answers, "maps")["grids"]
    assert [column["explained"] for column in grid["columns"]] == [False, False, False, True, False, False]
    too_long = app_tools.events(client, "explain", {"text": "the " * 50, "methods": ["lrp"]})
    assert "the input has 52 tokens" in too_long[-1]["message"]


def test_limits_are_numbers_from_1():
    with pytest.raises(lrpx.InputError, match="--max-tokens 0: give a number from 1"):
        Limits(tokens=0)


def test_the_limit_that_the_page_shows_is_no_more_than_the_model_can_read(desk):
    read = ModelSignature.of(desk.explainer.model).context
    assert Desk(desk.explainer, Limits(tokens=read + 1)).most_tokens == read
    assert Desk(desk.explainer, Limits(tokens=3)).most_tokens == 3
