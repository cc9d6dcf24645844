"""The page in a real browser: type, choose, click, generate, download, restore; wide and narrow, light and dark."""

import json
import re
import time

import app_kinds
import app_tools
import browser
import pictures
import pytest
import tiny_images
import tiny_processors
from app_tools import settled
from benchmark_tools import byte_bpe
from transformers import CLIPProcessor, GPT2Config, GPT2LMHeadModel, ViTImageProcessor

import lrpx
from lrpx.app import offered, server
from lrpx.app.desk import Desk, Limits
from lrpx.app.samples import Samples
from lrpx.benchmark import build_haystack, tokenize
from lrpx.benchmark.haystack import FILLER

pytestmark = pytest.mark.browser
TEXT = app_tools.TEXT
ATTACK = '<img src=x onerror="document.title=\'hit\'"><script>document.title="hit"</script>'


def explained(page, url, text=TEXT, methods=("lrp", "alti-logit")):
    """The page with the maps of a text that was typed."""
    page.goto(url)
    page.fill("#text", text)
    for method in methods:
        page.check(f"#methods input[value={method}]")
    page.click("#explain")
    page.wait_for_selector(".grid")
    return settled(page)


def generated(page, url):
    """The page with five generated tokens, filled in as soon as it is there."""
    page.goto(url)
    page.fill("#text", TEXT)
    page.fill("#count", "5")
    page.click("#go-on")
    page.wait_for_selector(".grid")
    return settled(page)


def problem(page):
    return page.inner_text("#problem") if page.is_visible("#problem") else ""


def refused(page, button="#explain"):
    """What is said after a button whose question is refused."""
    page.click(button)
    page.wait_for_selector("#problem:not([hidden])")
    return problem(settled(page))


@pytest.mark.parametrize(("width", "dark"), [(browser.DESKTOP, False), (browser.PHONE, True)])
def test_type_choose_click_and_restore(new_page, url, desk, width, dark):
    page = explained(new_page(width, dark=dark), url)
    likeliest = desk.explainer.likeliest(TEXT, 3)
    page.click("#likely tbody tr:nth-child(2) input[name=target]")
    settled(page)
    page.click("#likely tbody tr:nth-child(3) input[name=contrast]")
    settled(page)
    target, contrast = likeliest[1].token, likeliest[2].token
    e = desk.explainer(TEXT, target=target.id, contrast=contrast.id, method="lrp")
    assert page.inner_text(".header .what").endswith(f"= {e.value:+.4g}".replace("-", "\N{MINUS SIGN}"))
    assert page.input_value("#target") == target.shown
    assert page.locator(".column").count() == 5
    assert page.locator(".column").nth(1).locator(".value").count() == 3
    page.click(".column >> nth=1")
    page.wait_for_selector("#inside:not([hidden])")
    assert "keys" in page.inner_text("#inside-body")
    assert page.locator("#inside table").count() == 2
    assert page.get_attribute(".column >> nth=1", "aria-pressed") == "true"
    assert not browser.wider_than_window(page)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background.strip("rgb()").split(","))) < 200) is dark
    address, numbers = page.url, page.locator(".value").all_inner_texts()
    again = new_page(width, dark=dark)
    again.goto(address)
    again.wait_for_selector("#inside:not([hidden])")
    settled(again)
    assert again.input_value("#text") == TEXT
    assert again.locator(".value").all_inner_texts() == numbers
    assert again.locator("#methods :checked").count() == 3
    assert again.input_value("#contrast") == contrast.shown
    assert not problem(again)


def test_names_stand_at_every_line_of_a_narrow_grid(new_page, url):
    page = explained(new_page(browser.PHONE), url, "The keys to the cabinet the keys to the cabinet")
    lines = page.evaluate("new Set([...document.querySelectorAll('.column')].map(c => c.offsetTop)).size")
    assert lines > 1
    assert page.locator(".names").count() == lines
    for n in range(lines):
        names = page.locator(".names").nth(n)
        assert names.inner_text().split() == ["lrp", "attnlrp", "alti-logit"]
    tops = page.evaluate(
        "[...document.querySelectorAll('.names')].map(n => [...n.children].map(s => Math.round(s.getBoundingClientRect().top)))"
    )
    cells = page.evaluate(
        """[...new Map([...document.querySelectorAll('.column')].map(c => [c.offsetTop, c]).reverse()).values()]
        .map(c => [...c.querySelectorAll('.value')].map(v => Math.round(v.getBoundingClientRect().top)))"""
    )
    assert sorted(tops) == sorted(cells)


def test_every_line_of_a_grid_begins_at_the_same_place(new_page, url):
    """A space is not at the beginning of a line."""
    page = explained(new_page(browser.PHONE), url, "The keys to the cabinet the keys to the cabinet")
    firsts = page.evaluate(
        """[...new Map([...document.querySelectorAll('.column')].map(c => [c.offsetTop, c]).reverse()).values()]
        .map(c => c.offsetLeft)"""
    )
    assert len(firsts) > 1
    assert len(set(firsts)) == 1


def test_downloads(new_page, url, tmp_path):
    page = explained(new_page(), url)
    for kind, name in (("json", "lrpx.json"), ("html", "lrpx.html"), ("csv", "lrpx.csv"), ("latex", "lrpx.tex")):
        with page.expect_download() as started:
            page.click(f"[data-format={kind}]")
        assert started.value.suggested_filename == name
        started.value.save_as(tmp_path / name)
        settled(page)
    found = lrpx.Explanations.load(tmp_path / "lrpx.json")
    assert [e.method for e in found] == ["lrp", "attnlrp", "alti-logit"]
    assert "alti-logit" in (tmp_path / "lrpx.html").read_text()


def test_generated_tokens_are_clicked_and_marked(new_page, url, desk):
    page = generated(new_page(), url)
    g = desk.explainer.generate(TEXT, max_new_tokens=5)
    reply = page.locator("#reply button")
    assert reply.count() == len([u for u in g.units if u.start >= g.prompt_length])
    reply.nth(1).click()
    browser.until(page, "document.querySelectorAll('.column').length === 6")
    settled(page)
    reply.nth(1).click()
    settled(page)
    reply.nth(3).click(modifiers=["Shift"])
    browser.until(page, "document.querySelectorAll('.column').length === 8")
    settled(page)
    assert "sum of the logits of" in page.inner_text(".header .what")
    address, what = page.url, page.inner_text(".header .what")
    again = new_page()
    again.goto(address)
    again.wait_for_selector(".grid")
    settled(again)
    assert again.inner_text(".header .what") == what
    assert again.locator("#reply [aria-pressed=true]").count() == 3


def test_generated_tokens_are_marked_from_the_keyboard(new_page, url):
    """From the token that has the focus, wherever marking began before."""

    def pressed(*keys):
        for key in keys:
            page.keyboard.press(key)
        buttons = page.locator("#reply button")
        return [n for n in range(buttons.count()) if buttons.nth(n).get_attribute("aria-pressed") == "true"]

    page = generated(new_page(), url)
    page.locator("#reply button").nth(0).focus()
    assert pressed("ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight") == [1, 2, 3]
    assert pressed("Shift+ArrowLeft") == [1, 2]
    shown = page.inner_text(".header .what")
    page.locator(".column").nth(1).click()  # what is marked is not explained yet, so the rest is about what is
    settled(page)
    assert "span=0-1" in page.url
    assert page.locator("#marked").is_visible()
    assert page.inner_text(".header .what") == shown
    page.locator("#reply button").nth(2).focus()
    page.keyboard.press("Enter")
    browser.until(page, "document.querySelectorAll('.column').length === 7")
    settled(page)
    assert "span=1-3" in page.url
    assert not page.locator("#marked").is_visible()
    assert pressed("ArrowRight", "Shift+ArrowRight") == [3, 4]
    assert pressed("Shift+Home") == [0, 1, 2, 3]
    assert pressed("ArrowRight") == [1, 2]  # what is explained; nothing more is marked
    assert not page.locator("#marked").is_visible()
    page.keyboard.press("Enter")  # opens one
    browser.until(page, "location.hash.includes('span=1-2')")
    settled(page)
    assert pressed() == [1]


def test_nothing_is_written_over_what_was_typed_first(new_page, url, monkeypatch):
    """However late the server says what the model is, the form is ready when the page is."""

    def late(desk, about=server.about):
        time.sleep(0.5)
        return about(desk)

    monkeypatch.setattr(server, "about", late)
    page = generated(new_page(), url)
    assert (page.input_value("#text"), page.input_value("#count")) == (TEXT, "5")
    assert page.locator("#reply button").count() == 5


def test_a_link_fills_the_form_before_anything_is_computed(new_page, url):
    new_page.expected = ("net::ERR_FAILED",)
    page = new_page(browser.PHONE)
    page.route("**/api/explain", lambda route: route.abort())
    page.goto(f"{url}/#kind=text&text={TEXT}&target=+are&contrast=+is&method=lrp")
    browser.until(page, "document.querySelector('#problem').checkVisibility()")
    assert (page.input_value("#target"), page.input_value("#contrast")) == (" are", " is")


def test_labels_stand_beside_their_boxes(new_page, url):
    page = explained(new_page(browser.PHONE), url)
    for role in ("target", "contrast"):
        label, box = page.locator(f"label[for={role}]").bounding_box(), page.locator(f"#{role}").bounding_box()
        assert box["y"] < label["y"] + label["height"] / 2 < box["y"] + box["height"]


def test_by_keyboard_alone(new_page, url):
    page = new_page()
    page.goto(url)
    page.focus("#text")
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".grid")
    settled(page)
    page.focus(".column")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#inside:not([hidden])")
    assert "position 1" in page.inner_text("#inside-body")
    assert page.evaluate("document.activeElement.className").startswith("column")
    page.keyboard.press("End")
    assert "cabinet" in page.evaluate("document.activeElement.innerText")


def test_what_is_typed_is_text_and_nothing_else(new_page, url):
    """Text of users, of links, and in errors is never HTML, and the policy would not run it either."""
    new_page.expected = ("Content Security Policy", "404")  # of the picture that the test itself puts into the page
    page = explained(new_page(), url, ATTACK[:38], methods=())
    assert "".join(page.locator(".piece").all_text_contents()).startswith("<img␣src=x␣onerror=")
    page.fill("#target", ATTACK)
    page.click("#choose")
    settled(page)
    page.goto(f"{url}/#kind=text&text={ATTACK.replace('#', '')}&target={ATTACK}&method={ATTACK}&method=lrp")
    page.reload()
    settled(page)
    assert page.locator("#results img, #results script").count() == 0
    assert "hit" not in page.title()
    assert not new_page.complaints
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=\"x\" onerror=\"document.title=1\">')")
    page.wait_for_timeout(100)
    assert page.title() != "1"


def test_errors_are_shown_and_the_next_question_is_answered(new_page, url):
    page = new_page()
    page.goto(url)
    page.fill("#text", "The " * 60)
    assert "tokens, and this app explains up to 40" in refused(page)
    assert page.is_hidden("#maps")
    page.fill("#text", TEXT)
    page.click("#explain")
    page.wait_for_selector(".grid")
    assert not problem(page)


def test_what_kept_the_maps_away_is_mended_where_it_was_chosen(new_page, url):
    page = new_page()
    page.goto(url)
    page.click("#options summary")
    page.fill("#text", TEXT)
    page.check("#methods input[value=gradient]")
    page.check("#shared")
    assert page.is_visible("#welcome")  # nothing was asked yet
    for mend, undo in (
        (lambda: page.uncheck("#shared"), lambda: page.check("#shared")),
        (lambda: page.uncheck("#methods input[value=gradient]"), None),
    ):
        assert "so there is no common scale" in refused(page)
        assert page.is_hidden("#maps")
        mend()
        page.wait_for_selector("#maps:not([hidden])")
        assert not problem(settled(page))
        if undo:
            undo()
            settled(page)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "photo.png"
    path.write_bytes(pictures.png_of(pictures.photo()))
    return path


def test_the_button_explains_what_was_typed(new_page, url):
    page = explained(new_page(), url, methods=())

    def what(press, **fields):
        for name, text in fields.items():
            page.fill(f"#{name}", text)
        press()
        settled(page)
        return page.inner_text(".header .what") if page.is_visible("#maps") else problem(page)

    def button():
        page.click("#explain")

    def keys():
        page.press("#text", "Control+Enter")

    likeliest = what(button)
    assert "target" not in page.url  # what is filled in is no choice
    assert "are the same token" in what(button, target=" are", contrast=" are")
    assert 'logit " are" − logit " is" =' in what(button, contrast=" is")
    assert 'logit " keys" −' in what(keys, target=" keys")
    assert (page.input_value("#target"), page.input_value("#contrast")) == (" keys", " is")
    page.fill("#target", " cabinet")
    page.check("#methods input[value=lrp]")
    assert 'logit " cabinet" −' in settled(page).inner_text(".header .what")
    what(button, text="The cabinet")  # what was chosen for another text does not hold for this one
    assert "target" not in page.url
    assert page.input_value("#contrast") == ""
    assert 'logit " are" =' in what(button, text="The keys", target=" are")  # but what is typed together with it
    assert what(button, text=TEXT, target="") == likeliest


def test_a_position_is_that_of_its_text(new_page, url):
    page = explained(new_page(), url, methods=())
    page.click("#options summary")

    def explained_at():
        page.click("#explain")
        columns = settled(page).locator(".column")
        return columns.evaluate_all("all => all.findIndex(each => each.matches('.explained'))"), columns.count()

    page.click(".column >> nth=1")
    page.click("#explain-next")
    browser.until(page, "location.hash.includes('position=1')")
    settled(page)
    assert explained_at() == (1, 5)
    page.fill("#text", "The keys to")
    assert explained_at() == (2, 3)
    assert ("position" in page.url, page.input_value("#position")) == (False, "")
    page.fill("#text", TEXT)
    page.fill("#position", "2")  # typed together with the text
    assert explained_at() == (2, 5)
    assert explained_at() == (2, 5)
    page.fill("#text", "The keys")
    page.fill("#position", "0")
    page.select_option("#palette", "orange and purple")
    assert explained_at() == (0, 2)
    page.locator("#kinds label", has_text="Chat").click()
    assert page.input_value("#position") == ""
    page.fill("#position", "1")
    page.locator("#kinds label", has_text="Text").click()
    assert explained_at() == (1, 2)


def test_what_was_chosen_for_a_generated_token_is_not_asked_of_the_input(new_page, url):
    page = generated(new_page(), url)
    page.locator("#likely .token").nth(3).click()
    assert "target_id=" in settled(page).url
    page.click("#explain")
    settled(page)
    assert "target" not in page.url
    assert "span" not in page.url
    assert page.locator("#reply [aria-pressed=true]").count() == 0
    page.locator("#reply button").nth(0).click()
    browser.until(page, "location.hash.includes('span=')")
    settled(page).fill("#target", " are")
    page.click("#explain")
    settled(page)
    assert ("target=+are" in page.url, "span" in page.url) == (True, False)
    assert page.input_value("#target") == " are"


def test_a_label_with_a_typing_error_is_corrected(new_page, picture):
    images = ViTImageProcessor(size={"height": 16, "width": 16})
    model = tiny_images.build("image:vit")
    with app_tools.served(Desk(lrpx.Explainer(model, images))) as address:
        page = new_page()
        page.goto(address)
        assert "Choose an image and press" in page.inner_text("#welcome")
        page.set_input_files("#images", picture)
        page.click("#explain")
        page.wait_for_selector(".grid")
        page.fill("#target", "LABLE_1")
        assert "'LABLE_1' is no label" in refused(page, "#choose")
        assert page.is_hidden("#maps")
        assert page.input_value("#target") == "LABLE_1"
        page.fill("#target", model.config.id2label[1])
        page.click("#choose")
        page.wait_for_selector("#maps:not([hidden])")
        assert not problem(settled(page))


def test_texts_are_typed_before_an_image_is_scored_with_them(new_page, picture):
    reader = CLIPProcessor(ViTImageProcessor(size={"height": 16, "width": 16}), tiny_processors.words(20))
    explainer = lrpx.Explainer(tiny_images.build("score:clip"), reader)
    with app_tools.served(Desk(explainer)) as address:
        page = new_page()
        page.goto(address)
        page.wait_for_selector("#explain:enabled")
        page.set_input_files("#images", picture)
        assert "no text is given" in refused(page)
        page.fill("#target", "a cat </s>")
        page.fill("#contrast", "two dog </s>")
        page.click("#explain")
        page.wait_for_selector("#maps:not([hidden])")
        first = settled(page).inner_text(".what")
        assert "a cat </s>" in first
        page.set_input_files("#images", [])
        page.set_input_files("#images", picture)
        page.click("#explain")
        assert settled(page).inner_text(".what") == first
        assert not problem(page)


def test_a_link_that_was_cut(new_page, url):
    page = new_page()
    page.goto(
        f"{url}/#kind=nothing&text={TEXT}&span=3&continuation=x.y&messages=[&position=x&token=&method=lrp&target_id="
    )
    page.wait_for_selector(".grid")
    settled(page)
    assert page.locator(".column").count() == 5


def test_waiting_and_leaving(new_page, url, desk, monkeypatch):
    """A second page is told its place; when the first cancels, it is answered."""
    import threading

    gate, original = threading.Event(), desk.explanation

    def slow(question, method):
        if question.text == "slow here":
            gate.wait(300)
        return original(question, method)

    monkeypatch.setattr(desk, "explanation", slow)
    first, second = new_page(), new_page()
    first.goto(url)
    first.fill("#text", "slow here")
    first.click("#explain")
    browser.until(first, "document.querySelector('#told').textContent.startsWith('Explaining')")
    second.goto(url)
    second.fill("#text", TEXT)
    second.click("#explain")
    browser.until(second, "document.querySelector('#told').textContent.startsWith('Waiting: 1 question is')")
    second.click("#cancel")
    assert second.inner_text("#told") == "Cancelled."
    second.click("#explain")
    browser.until(second, "document.querySelector('#told').textContent.startsWith('Waiting: 1 question is')")
    first.click("#cancel")
    finished = "Cancelled. What was being computed is finished first; then the next question begins."
    assert first.inner_text("#told") == finished
    gate.set()
    second.wait_for_selector(".grid")


def test_the_page_has_names_for_everything(new_page, url):
    """Every control has a name, headings follow one another, and text has the contrast of WCAG AA, in light and dark."""
    for dark in (False, True):
        page = explained(new_page(dark=dark), url)
        page.click(".column >> nth=0")
        page.wait_for_selector("#inside:not([hidden])")
        unnamed = page.evaluate(
            """[...document.querySelectorAll('button,input,select,textarea')].filter(e => e.checkVisibility() &&
            !(e.innerText.trim() || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"""
        )
        assert unnamed == []
        assert page.evaluate("[...document.querySelectorAll('h1,h2')].map(h => h.tagName)")[0] == "H1"
        assert page.get_attribute("html", "lang") == "en"
        weak = page.evaluate(CONTRAST)
        assert weak == [], json.dumps(weak[:5])


CONTRAST = """(() => {
const rgb = c => c.match(/[\\d.]+/g).map(Number);
const linear = x => x / 255 <= .04045 ? x / 255 / 12.92 : ((x / 255 + .055) / 1.055) ** 2.4;
const light = c => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
const behind = e => {
  for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c;
  }
  return [255, 255, 255];
};
const written = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
const looked = e => e.checkVisibility() && !e.matches(':disabled, option, .read, .read *, .skip');
return [...document.querySelectorAll('body *')].filter(e => looked(e) && written(e)).map(e => {
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
  return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.trim().slice(0, 30), e.className];
}).filter(([ratio]) => ratio < 4.5);
})()"""


def test_a_benchmark_is_browsed_and_its_ground_truth_underlined(new_page, tmp_path):
    tokenizer = byte_bpe([*FILLER, "The special magic number for"])
    sizes = {"n_positions": 1024, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).eval()
    build_haystack(tmp_path / "hay", sentences=40, needles=2, samples=2)
    sample = tokenize(tmp_path / "hay", tokenizer, name="tiny", progress=False).samples[0]
    explainer = lrpx.Explainer(model, tokenizer)
    desk = Desk(explainer, Limits(tokens=len(sample.input_ids)), Samples(explainer, tmp_path / "hay"))
    with app_tools.served(desk) as address:
        page = new_page(browser.DESKTOP)
        page.goto(f"{address}/#kind=text&text=The+special+magic+number+for&method=lrp")
        page.wait_for_selector("#maps:not([hidden])")
        settled(page).locator("#kinds label", has_text="Benchmark").click()
        page.wait_for_selector("#samples button")
        assert page.is_hidden("#maps")  # which are those of the text
        assert page.is_hidden("#predictions")
        assert "2 sentences; page 1 of 1. The needle value is underlined." in page.inner_text("#found")
        listed = page.locator("#samples button").first
        assert listed.locator(".truth").all_inner_texts() == list(sample.verb)
        assert listed.locator(".attractor").all_inner_texts() == list(sample.other)
        assert "…" in listed.inner_text()
        listed.click()
        page.wait_for_selector(".column.truth")
        assert "".join(page.locator(".column.truth .piece").all_inner_texts()) == sample.verb
        assert page.locator(".column.truth").first.get_attribute("aria-label").endswith("ground truth")
        verb = settled(page).input_value("#target")
        page.fill("#contrast", " special")  # beside the verb, which stands there
        page.click("#explain")
        browser.until(page, "location.hash.includes('contrast=+special')")
        assert (settled(page).input_value("#target"), page.input_value("#contrast")) == (verb, " special")
        assert not problem(settled(page))


@pytest.mark.parametrize("kind", app_kinds.KINDS)
def test_every_kind_of_model_is_used_like_a_person_does(new_page, kind, picture):
    """Nothing is asked that does not apply, no error speaks Python, and after each mistake it can be done right."""
    desk, (_, asked) = app_kinds.desk(kind), app_kinds.KINDS[kind]
    with app_tools.served(desk) as address:
        page = new_page(browser.PHONE)
        page.goto(address)
        page.click("#options summary")
        assert page.is_visible("#position") is (desk.task in ("causal", "masked", "token-classification"))
        assert ("tokens" in page.inner_text("#model")) is bool(desk.kinds[0] != "image")
        said = [problem(asked_for(page))]  # nothing is filled in
        if asked.get("kind") == "chat":
            page.locator("#kinds label", has_text="Chat").click()
        if asked.get("images"):
            page.set_input_files("#images", picture)
        fill(page, asked)
        page.click("#explain")
        page.wait_for_selector("#maps:not([hidden])")
        assert not problem(settled(page))
        cannot = offered.methods_for(desk.explainer.model, images=bool(asked.get("images")))
        ticks = page.locator("#methods .tick:visible input").evaluate_all("boxes => boxes.map(box => box.value)")
        assert ticks == [name for name, why in cannot.items() if not why]
        page.fill("#target", "LABLE 🙂 مرحبا नमस्ते")
        page.click("#choose")
        said.append(problem(settled(page)))
        page.fill("#target", asked.get("target", ""))
        page.click("#explain")  # which reads what was typed, as Apply does
        page.wait_for_selector("#maps:not([hidden])")
        assert not problem(settled(page))
        for text in said:
            assert not re.search(r"\w=|\w\(|Type:|--(?!max)", text), text
        assert not browser.wider_than_window(page)


def asked_for(page):
    """The page when it has answered the question that is typed."""
    page.click("#explain")
    return settled(page)


def fill(page, asked):
    """Type a question of ``app_kinds``."""
    fields = {name: asked[name] for name in ("text", "text_pair", "question", "target", "position") if name in asked}
    if "choices" in asked:
        fields["choices"] = "\n".join(asked["choices"])
    for name, value in fields.items():
        page.fill(f"#{name}", str(value))
    for n, message in enumerate(asked.get("messages", ())):
        page.fill(f".message textarea >> nth={n}", message["content"])


def test_patches_are_reached_by_keyboard(new_page, picture):
    with app_tools.served(app_kinds.desk("image-classification")) as address:
        page = new_page()
        page.goto(address)
        page.set_input_files("#images", picture)
        page.click("#explain")
        page.wait_for_selector(".patch")
        settled(page)
        patches = page.locator(".patch")
        assert patches.count() == 16
        assert page.locator(".patch[tabindex='0']").count() == 1
        patches.first.focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        focused = page.evaluate("document.activeElement.ariaLabel")
        assert re.fullmatch(r"row 2, column 3: [+−]?\d[\d.]*", focused)
        page.keyboard.press("Enter")
        page.wait_for_selector("#inside:not([hidden])")
        assert "[2, 3]" in page.inner_text("#inside-body")
        pressed = page.locator(".patch[aria-pressed=true]").evaluate_all("all => all.map(each => each.ariaLabel)")
        assert pressed == [focused]
        assert page.evaluate("document.activeElement.ariaLabel") == focused


def test_methods_that_cannot_explain_images_are_left_out_with_the_reason(new_page, picture):
    with app_tools.served(app_kinds.desk("vision-language with an image")) as address:
        page = new_page()
        page.goto(address)
        page.check("#methods input[value=leave-one-out]")
        page.uncheck("#methods input[value=attnlrp]")
        page.set_input_files("#images", picture)
        page.wait_for_selector("#explain:enabled")
        assert page.is_hidden("#methods input[value=leave-one-out]")
        assert page.locator("#methods :checked").evaluate_all("boxes => boxes.map(box => box.value)") == ["attnlrp"]
        page.click("#left-out summary")
        assert "leave-one-out" in page.inner_text("#left-out li:has-text('explains texts without images')")
        page.set_input_files("#images", [])
        page.wait_for_selector("#explain:enabled")
        assert page.is_visible("#methods input[value=leave-one-out]")


def test_colours_for_colour_blindness_are_kept_by_the_link_and_the_downloads(new_page, url, tmp_path):
    page = explained(new_page(), url, methods=())
    page.click("#options summary")
    page.select_option("#palette", "orange and purple")
    settled(page)
    first = "getComputedStyle(document.querySelector('.bar i:last-child')).backgroundColor"
    assert page.evaluate(first) == "rgb(204, 98, 0)"
    again = new_page()
    again.goto(page.url)
    again.wait_for_selector(".grid")
    settled(again)
    assert again.evaluate(first) == "rgb(204, 98, 0)"
    assert again.input_value("#palette") == "orange and purple"
    assert again.inner_text("#raised") == "orange" or again.is_hidden("#welcome")
    with page.expect_download() as started:
        page.click("[data-format=html]")
    started.value.save_as(tmp_path / "map.html")
    assert "--lrpx-high:#CC6200" in (tmp_path / "map.html").read_text()


def test_sum_and_residual_are_said_once(new_page, url):
    page = explained(new_page(), url, methods=())
    assert page.inner_text("#maps").count("residual") == 1


def test_reloading_going_back_and_clicking_fast(new_page, url, desk):
    """The last question is the one that is answered; a page that is loaded anew asks it again."""
    page = explained(new_page(), url, methods=())
    first = page.url
    buttons = page.locator("#likely .token")
    page.evaluate("document.querySelectorAll('#likely .token').forEach(button => button.click())")
    settled(page)
    last = desk.explainer.likeliest(TEXT, buttons.count())[-1].token
    assert page.input_value("#target") == last.shown
    assert page.locator(".grid").count() == 1
    page.evaluate("document.querySelector('#explain').click()")
    page.reload()
    page.wait_for_selector(".grid")
    settled(page)
    assert page.input_value("#target") == last.shown
    page.goto("about:blank")
    page.go_back()
    page.wait_for_selector(".grid")
    assert settled(page).input_value("#text") == TEXT
    page.goto(first)  # another question of the same page
    browser.until(page, "!location.hash.includes('target')")
    page.wait_for_selector(".grid")
    settled(page)
    assert not problem(page)
