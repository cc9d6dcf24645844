"""What stands in the boxes “Explain” and “and not” is what was explained, until somebody edits it."""

import app_kinds
import app_tools
import pytest
from app_tools import settled

from lrpx.app.drawing import listed_predictions

TEXT = app_tools.TEXT


def opened(new_page, address):
    page = new_page()
    page.goto(address)
    page.wait_for_selector("#maps:not([hidden])")
    return settled(page)


def explained(page):
    return page.inner_text(".header .what, .row .what")


def chosen(page, role="target"):
    """The name of each row that is ticked."""
    return page.locator(f"#likely tr:has(input[name={role}]:checked) .token").all_inner_texts()


def answers(**asked):
    desk, (_, given) = app_kinds.desk("question-answering"), app_kinds.KINDS["question-answering"]
    return desk.explainer(given["text"], question=given["question"], **asked)


def test_answers_that_begin_alike_are_told_apart():
    e = answers(target=(7, 8), contrast=(7, 7))
    shown = listed_predictions(e.top, e)
    assert (shown["target"]["ask"], shown["contrast"]["ask"]) == ([7, 8], [7, 7])
    asked = [row["ask"] for row in shown["tokens"]]
    assert len({*map(tuple, asked)}) == len(asked) >= 5
    for row in shown["tokens"]:
        assert answers(target=tuple(row["ask"])).target[1:] == (row["text"], row["text"])


def test_a_phrase_is_not_its_first_token(desk):
    both = desk.explainer.likeliest(TEXT, 1)[0].token.shown + " are"
    e = desk.explainer(TEXT, target=both)
    shown = listed_predictions(desk.explainer.likeliest(TEXT, 5), e)
    assert shown["target"]["ask"] == both
    assert [row["ask"] for row in shown["tokens"]].count(both) == 1


def test_what_is_explained_stands_before_the_likeliest_and_says_so(desk):
    found = desk.explainer.likeliest(TEXT, 5)
    e = desk.explainer(TEXT, target=found[3].token.id, contrast=found[1].token.id)
    rows = listed_predictions(found, e)["tokens"]
    assert [(row["id"], row.get("role")) for row in rows[:2]] == [
        (e.target.id, "explained"),
        (e.contrast.id, "and not"),
    ]
    assert [row["id"] for row in rows[2:]] == [found[n].token.id for n in (0, 2, 4)]


def test_first_and_last_tokens_are_for_answers_alone(desk):
    heard = app_tools.events(app_tools.client(desk), "explain", {"text": TEXT, "target": [1, 2]})
    assert "only an answer to a question has" in heard[-2]["methods"][0]["message"]


@pytest.mark.browser
def test_only_the_explained_answer_is_marked(new_page):
    desk, (_, given) = app_kinds.desk("question-answering"), app_kinds.KINDS["question-answering"]
    texts = [token.shown for token, _ in answers().top]
    with app_tools.served(desk) as address:
        page = opened(new_page, f"{address}/#kind=text&text={given['text']}&question={given['question']}")
        assert page.locator("#likely .token").all_inner_texts() == texts
        for n, text in enumerate(texts):
            page.click(f"#likely .token >> nth={n}")
            settled(page)
            assert f'"{text}"' in explained(page)
            assert page.locator("#likely tr.chosen").count() == 1
            assert chosen(page) == [text]
            assert page.locator("input[name=contrast]:disabled").count() == 1
        page.click("input[name=contrast]:enabled >> nth=0")
        assert chosen(settled(page), "contrast") == texts[:1]
        what = explained(page)
        page.reload()
        page.wait_for_selector("#maps:not([hidden])")
        assert explained(settled(page)) == what


@pytest.mark.browser
@pytest.mark.parametrize("text", ["ð", "\n", "  "])
def test_apply_without_an_edit_explains_the_same(new_page, url, desk, text):
    """Also where the box cannot hold the token: half a character, a line break."""
    vocabulary = desk.explainer.tokenizer.get_vocab()
    token = vocabulary[{"\n": "Ċ", "  ": "Ġ"}.get(text, text)]
    page = opened(new_page, f"{url}/#kind=text&text={TEXT}&target_id={token}&method=lrp")
    what = explained(page)
    assert page.input_value("#target")
    for _ in range(2):
        page.click("#choose")
        assert explained(settled(page)) == what
        assert f"target_id={token}&" in page.url
        assert page.is_hidden("#problem")


@pytest.mark.browser
def test_apply_after_an_edit_explains_what_was_typed(new_page, url, desk):
    page = opened(new_page, f"{url}/#kind=text&text={TEXT}&method=lrp")
    first = page.input_value("#target")
    page.fill("#contrast", " is")
    assert "and not ␣is" in page.inner_text("#as-typed")
    page.click("#choose")
    assert f'"{first}" ' in explained(settled(page))
    assert '" is"' in explained(page)
    page.click("#swap")
    assert explained(settled(page)).startswith('logit " is"')
    assert page.input_value("#contrast") == first
    page.fill("#text", "The dog")  # what was filled in for another text is no choice for this one
    page.click("#choose")
    settled(page)
    assert page.input_value("#target") == desk.explainer("The dog").target.shown
    assert not page.input_value("#contrast")
