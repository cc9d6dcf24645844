"""Layers, heads and neurons: matrices, the page in which one chooses, and what is said where they are not known."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from inside_tools import HEADS, LAYERS, NASTY, WORDS, cells, made
from rich.cells import cell_len
from rich.console import Console

from lrpx import Explanation, Explanations, heatmap
from lrpx.errors import InputError
from lrpx.heatmap import Look, render
from lrpx.heatmap.colours import PALETTES, colour
from lrpx.heatmap.explorer import explorer, packed
from lrpx.heatmap.matrix import layers_by_heads, tokens_by_layers
from lrpx.heatmap.matrix_html import png
from lrpx.heatmap.rtl import LTR_MARK, in_order
from lrpx.heatmap.shown import chosen
from lrpx.results.tokens import Token


def printed(e, of, *, width=80, colours="truecolor", look=None):
    raw = io.StringIO()
    console = Console(
        file=raw, width=width, color_system=colours, force_terminal=colours is not None, no_color=colours is None
    )
    console.print(heatmap.render(e, look=look or Look(), of=of))
    return re.sub(r"\x1b\[[0-9;]*m", "", raw.getvalue())


# Data.


def test_a_page_of_a_long_text_is_no_larger_than_the_documentation_says(tmp_path):
    """With numbers whose bytes are all equally likely, which cannot be compressed."""
    words, layers, heads = [f" word{i}" for i in range(500)], 32, 32

    def incompressible(seed):
        draws = np.random.default_rng(seed).uniform(-1, 1, (layers, heads + 3, len(words)))
        numbers = np.sign(draws) * draws**2
        inside = dict(zip(("by_layer", "by_attention", "by_mlp"), np.moveaxis(numbers[:, heads:], 1, 0), strict=True))
        return made(words, seed, method=f"method{seed}", by_head=numbers[:, :heads], **inside)

    sizes = []
    for count in (1, 2, 3):
        Explanations([incompressible(seed) for seed in range(count)]).to_html(tmp_path / "page.html")
        sizes.append((tmp_path / "page.html").stat().st_size)
    assert 0.9e6 < sizes[0] < 1.1e6
    assert np.diff(sizes).min() > 0.8e6
    assert np.diff(sizes).max() < 0.95e6


def test_matrices_have_the_sums_of_the_cells():
    e = made()
    layers, heads = tokens_by_layers(e, Look()), layers_by_heads(e, Look())
    np.testing.assert_allclose(layers.numbers, cells(e.by_layer).T)
    np.testing.assert_allclose(heads.numbers, e.by_head.sum(-1))
    assert [row.text.strip() for row in layers.rows] == ["The", "keys", "to", "cabinet"]
    without = made(by_layer=None)
    np.testing.assert_allclose(tokens_by_layers(without, Look()).numbers, cells(e.by_attention).T)
    assert "attention adds" in tokens_by_layers(without, Look()).title
    hidden = tokens_by_layers(e, Look(hide="first"))
    assert np.isnan(hidden.numbers[0]).all()
    assert np.isfinite(hidden.numbers[1:]).all()


def test_a_head_is_an_explanation_of_its_own(tmp_path):
    e = made()
    head = e.head(1, 2)
    np.testing.assert_array_equal(head.relevance, e.by_head[1, 2])
    assert (head.method, head.residual, head.by_head) == ("attnlrp, head 2 of layer 1", None, None)
    head.save(tmp_path / "head.json")
    np.testing.assert_array_equal(Explanation.load(tmp_path / "head.json").relevance, head.relevance)


def test_what_is_inside_is_not_said_to_be_at_the_input():
    e = made(components={})
    neuron, head, last = e.neurons()[0], e.head(1, 2), made(components={"bias": 1.0}).head(1, 2)
    assert neuron.at == "output of block.0.mlp"
    assert (head.at, last.at) == ("positions where the head writes", "tokens that the head reads")
    assert "relevance at the positions where the head writes" in head.to_html()
    assert "relevance at the input" in e.to_html()
    for of in ("layers", "heads"):
        assert "relevance at the" not in printed(e, of, width=200)
    assert "summed over the positions where the head writes" in printed(e, "heads", width=200)


def test_neurons_are_the_strongest():
    e = made()
    numbers = e.layers["block.0.mlp"]
    order = sorted(range(6), key=lambda i: -np.abs(numbers[:, i]).sum())
    found = e.neurons(top=3)
    assert [x.method for x in found] == [f"attnlrp, block.0.mlp, neuron {i}" for i in order[:3]]
    for x, i in zip(found, order, strict=False):
        np.testing.assert_array_equal(x.relevance, numbers[:, i])
    assert len(e.neurons("**.mlp")) == 6  # no more than there are


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda e: e.show("layer"), "no view of 'layer'. Did you mean 'layers'"),
        (lambda e: e.show("heads", head=3), r"head=3: give \(layer, head\)"),
        (lambda e: e.show("heads", head=(3, 0)), "give a layer from 0 to 2 and a head from 0 to 3"),
        (lambda e: e.show("heads", head=(-1, 0)), "give a layer from 0 to 2"),
        (lambda e: e.show(head=(0, 0)), 'is for of="heads"'),
        (lambda e: e.show("neurons", module="nope"), "no such module"),
        (lambda e: e.show("neurons", top=0), "top=0"),
        (lambda e: e.show(colour=3), "unknown option 'colour'"),
        (lambda e: e.to_latex(of="layers"), r'e.to_pdf\("layers.pdf", of="layers"\)'),
        (lambda e: made(by_head=None).show("heads"), "has no relevance of heads"),
        (lambda e: made(by_head=None).head(0, 0), "has no relevance of heads"),
        (lambda e: made(by_layer=None, by_attention=None, by_mlp=None).show("layers"), "has no relevance of layers"),
        (lambda e: made(layers={}).show("neurons"), "no relevance of neurons"),
        (lambda e: Explanations([e, e]).to_png("x.png", of="heads"), "a picture holds one matrix"),
    ],
)
def test_what_cannot_be_shown(ask, message):
    with pytest.raises(InputError, match=message):
        ask(made())


# Drawn.


@pytest.mark.parametrize("of", ["layers", "heads"])
@pytest.mark.parametrize("width", [24, 80])
def test_terminal_has_every_number_within_the_width(of, width):
    e = made()
    view = {"layers": tokens_by_layers, "heads": layers_by_heads}[of](e, Look())
    plain = printed(e, of, width=width, colours=None)
    assert all(view.number(v) in plain for v in view.numbers.ravel())
    for colours in ("truecolor", "standard", None):
        assert max(map(cell_len, printed(e, of, width=width, colours=colours).splitlines())) <= width
    assert "cabinet" in plain or of == "heads"
    assert ["colours to" in printed(e, of, width=width, colours=c) for c in ("truecolor", None)] == [True, False]


def test_terminal_shows_the_tokens_of_a_head_and_of_neurons(capsys):
    e = made()
    e.show("heads", head=(2, 1))
    assert "head 1 of layer 2" in capsys.readouterr().out
    e.show("neurons", top=2)
    out = capsys.readouterr().out
    assert "attnlrp, block.0.mlp: " in out
    assert out.count("neuron ") >= 2
    assert "value" not in out  # a neuron is a part
    Explanations([e, made(["Another", " text", " of", " fi", "ve"])]).show("layers")
    assert capsys.readouterr().out.count("what each layer adds") == 2


@pytest.mark.parametrize("top", [None, 4])
def test_the_strongest_neurons_are_those_of_all_modules(capsys, top):
    random = np.random.default_rng(0)
    e = made(layers={f"model.layers.{n}.mlp": random.normal(size=(5, 6)) for n in range(3)})
    e.show("neurons", **({} if top is None else {"top": top}))
    out = " ".join(capsys.readouterr().out.split())
    of_all = sorted(e.neurons(top=6), key=lambda x: -np.abs(x.relevance).sum())
    assert len(of_all) == 18
    most, names = top or 10, [x.method.removeprefix("attnlrp, model.layers.") for x in of_all]
    assert [name in out for name in names] == [True] * most + [False] * (18 - most)
    assert out.startswith("attnlrp, model.layers.*: ")
    assert f"note: the {most} neurons with the most relevance are shown, of all modules together" in out


def test_of_the_modules_that_fit_a_glob(capsys):
    random = np.random.default_rng(0)
    e = made(layers={f"block.{n}.{part}": random.normal(size=(5, 6)) for n in range(3) for part in ("mlp", "attn")})
    drawn, _, _ = chosen(e, "neurons", Look(), module="*.*.mlp", top=3)
    of_these = sorted(e.neurons("*.*.mlp", 6), key=lambda x: -np.abs(x.relevance).sum())[:3]
    assert {x.method for x in drawn} == {x.method for x in of_these}
    one, _, _ = chosen(e, "neurons", Look(), module="block.1.mlp", top=3)
    assert [x.notes for x in one] == [e.notes] * 3


def test_many_long_names_of_rows_stand_in_few_lines():
    random = np.random.default_rng(0)
    names = ("a_long_name_of_a_module", "another_long_name_of_one")
    e = made(layers={name: random.normal(size=(5, 6)) for name in names})
    drawn, look, _ = chosen(e, "neurons", Look())
    for colours in ("truecolor", None):
        console = Console(width=80, file=io.StringIO(), color_system=colours, force_terminal=bool(colours))
        console.print(render(drawn, look=look))
        out = console.file.getvalue()
        assert sum("neuron" in line for line in out.splitlines()) <= 8
        assert "10: another_long_name_of_one, neuron" in " ".join(out.split())


def test_an_image_has_a_pixel_for_each_number():
    import PIL.Image

    view = tokens_by_layers(made(), Look(hide="first"))
    drawn = np.asarray(PIL.Image.open(io.BytesIO(png(view))).convert("RGB"))
    assert drawn.shape == (4, LAYERS, 3)
    for row in range(1, 4):
        for column in range(LAYERS):
            assert tuple(drawn[row, column]) == colour(view.share(view.numbers[row, column]))
    assert len(set(map(tuple, drawn[0]))) == 1  # hidden


def test_fragments_have_no_script_and_no_raw_text():
    for of in ("layers", "heads"):
        fragment = heatmap.html_fragment(made(NASTY), of=of)
        assert "<script" not in fragment
        assert '" onclick="x' not in fragment


@pytest.mark.parametrize("of", ["layers", "heads"])
def test_pictures(of, tmp_path):
    made().to_png(tmp_path / "a.png", of=of)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    made().to_svg(tmp_path / "a.svg", of=of)
    for side in {"layers": ("token", "layer"), "heads": ("layer", "head")}[of]:
        assert f"<!-- {side} -->" in (tmp_path / "a.svg").read_text()  # what matplotlib says of text that it draws


@pytest.mark.parametrize("of", ["tokens", "layers"])
def test_pdf_has_no_type_3_fonts_which_journals_reject(of, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    several = [made(), made(method="lrp")] if of == "tokens" else [made()]
    Explanations(several).to_pdf(tmp_path / "a.pdf", of=of)
    written = (tmp_path / "a.pdf").read_bytes()
    assert b"/Subtype /Type3" not in written
    assert b"/FontFile2" in written


@pytest.mark.parametrize(("largest", "said"), [(1.0, False), (9.0, True)])
def test_a_picture_says_how_many_cells_are_beyond_the_scale(largest, said, tmp_path):
    by_head = np.zeros((LAYERS, 8, 5))
    by_head[..., 0] = 1.0
    by_head[1, 2, 0] = largest
    e = made(by_head=by_head)
    assert ("darkest: beyond the scale (1 of 24, up to +9.000)" in layers_by_heads(e, Look()).legend()) is said
    e.to_svg(tmp_path / "a.svg", of="heads")
    assert ("<!-- darkest: beyond the scale (1 of 24, up to +9.000) -->" in (tmp_path / "a.svg").read_text()) is said


def test_a_narrow_matrix_has_no_wide_margin(tmp_path):
    by_head = np.zeros((LAYERS, 8, 5))
    by_head[..., 0] = 1.0
    by_head[1, 2, 0] = 9.0
    made(by_head=by_head).to_svg(tmp_path / "a.svg", of="heads", header=False)
    text = (tmp_path / "a.svg").read_text()
    assert "darkest: beyond" in text
    assert float(re.search(r'width="([\d.]+)pt"', text)[1]) < 320


# The page in which one chooses.


def data_of(page):
    return json.loads(re.search(r'class="data">(.*?)</script>', page, flags=re.S)[1])


def unpacked(data, count):
    raw = zlib.decompress(base64.b64decode(data))
    vectors = len(raw) // (8 + count)
    largest, sums = (np.frombuffer(raw, "<f4", vectors, 4 * vectors * i) for i in (0, 1))
    steps = np.frombuffer(raw, "<i1", offset=8 * vectors).reshape(vectors, count) / 127
    return largest[:, None] * np.sign(steps) * steps**2, sums


def test_numbers_come_back_within_what_the_page_says():
    e = made()
    [[row]] = [text["rows"] for text in data_of(explorer([e], Look()))["texts"]]
    values, sums = unpacked(row["data"], 4)
    parts = [cells(e.by_layer), cells(e.by_attention), cells(e.by_mlp), cells(e.by_head).reshape(-1, 4)]
    expected = np.concatenate(parts)
    largest = np.abs(expected).max(1, keepdims=True)
    assert (np.abs(values - expected) <= 0.008 * largest + 1e-6).all()
    assert np.abs(values - expected).max() > 1e-4  # it is rounded, so the check sees something
    np.testing.assert_allclose(sums, expected.sum(1), rtol=1e-5, atol=1e-6)
    assert (row["layers"], row["heads"], row["parts"]) == (LAYERS, HEADS, ["all", "attention", "MLP"])
    np.testing.assert_allclose(row["total"], cells(e.relevance), rtol=1e-5)


def test_zeros_and_small_numbers_survive():
    numbers = np.array([[0.0, 0.0], [1e-30, -1.0], [0.01, 1.0]])
    values, _ = unpacked(packed(numbers), 2)
    assert values[0].tolist() == [0, 0]
    assert values[2, 0] == pytest.approx(0.01, rel=0.1)


def test_a_page_of_many_heads_is_small():
    """32 layers, 32 heads, 500 tokens: a byte for each number before compression, a third more in base64."""
    rng = np.random.default_rng(0)
    words = [f" w{i}" for i in range(500)]
    inside = {name: rng.normal(size=(32, 500)) for name in ("by_layer", "by_attention", "by_mlp")}
    e = made(words, by_head=rng.standard_t(3, size=(32, 32, 500)), layers={}, **inside)
    assert len(explorer([e], Look())) < 35 * 32 * 500 * 4 / 3 + 80_000


def test_a_page_holds_any_text():
    page = made(NASTY).to_html()
    assert "alert(1)</script>" not in page.split('class="data">')[1].split("</script>")[0]
    assert page.count("<script") == page.count("</script>") == 2
    assert next(c["t"] for c in data_of(page)["texts"][0]["rows"][0]["cells"]) == NASTY[0]


def test_only_pages_that_need_it_have_the_script():
    plain = made(by_head=None, by_layer=None, by_attention=None, by_mlp=None)
    assert "<script" not in plain.to_html()
    assert "<script" not in made()._repr_html_()
    page = Explanations([plain, made()]).to_html()
    assert "<script" in page
    assert page.split("<noscript>")[1].split("</noscript>")[0].count("<img") == 2  # layers and heads, as images


def test_methods_and_texts_of_the_page():
    es = Explanations([made(), made(seed=1, method="lrp"), made(["Another", " text", " of", " fi", "ve"])])
    data = data_of(es.to_html(of="layers"))
    assert [[row["label"] for row in text["rows"]] for text in data["texts"]] == [["attnlrp", "lrp"], ["attnlrp"]]
    assert data["start"] == "layers"


# Machado, Oliveira & Fernandes 2009, table 1, severity 1: what people with each kind of colour blindness see.
SEEN_BY = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def distance(a, b, kind):
    """CIE 1976: about 2 is just seen."""

    def lab(rgb):
        s = np.array(rgb) / 255
        linear = np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)
        seen = np.clip(np.array(SEEN_BY[kind]) @ linear, 0, 1)
        to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
        x = np.array(to_xyz) @ seen / np.array([0.9505, 1, 1.089])
        f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    return float(np.linalg.norm(lab(a) - lab(b)))


@pytest.mark.parametrize("kind", SEEN_BY)
def test_a_palette_is_safe_for_colour_blindness(kind):
    high, zero, low, above, below = PALETTES["orange and purple"]
    for a, b in [(high, low), (high, zero), (low, zero), (above, below), (above, high), (below, low)]:
        assert distance(a, b, kind) > 20
    assert distance((0, 158, 0), (200, 80, 0), "deuteranopia") < distance((0, 158, 0), (200, 80, 0), "tritanopia") / 2


@pytest.mark.parametrize("of", ["heads", "layers"])
def test_a_matrix_names_every_column_and_tells_the_value(of):
    e = made()
    page = heatmap.html_fragment(e, Look(), of)
    row = re.search(r'<span class="numbers">(.*?)</div>', page, flags=re.S)[1]
    count = {"heads": HEADS, "layers": LAYERS}[of]
    assert re.findall(r"<span>(\d*)</span>", row) == [str(i) for i in range(count)]
    for drawn in (page, printed(e, of)):
        assert 'logit "x" = +1.5' in re.sub("</?bdi>", "", drawn).replace("&quot;", '"')


@pytest.mark.parametrize("of", ["heads", "layers"])
@pytest.mark.browser
def test_a_matrix_is_printed_whole(of, new_page, tmp_path):
    rng = np.random.default_rng(0)
    whole, heads = rng.normal(size=(60, len(WORDS))), rng.normal(size=(60, HEADS, len(WORDS)))
    e = made(by_head=heads, by_layer=whole, by_attention=heads.sum(1), by_mlp=whole)
    e.to_html(tmp_path / "page.html", of=of)
    page = new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 900})
    box = page.locator(".matrix").first
    assert box.evaluate("b => b.scrollHeight <= b.clientHeight + 1")
    assert box.locator("img").evaluate("i => i.getBoundingClientRect().right") < 700


@pytest.mark.parametrize("of", ["heads", "layers"])
def test_a_number_stays_behind_a_hebrew_target(of, tmp_path):
    """Without a direction of its own, the token would take the number into its quotes."""
    e = made(target=Token(7, "ו", " ו"), contrast=Token(8, "ה", " ה"))
    e.to_html(tmp_path / "page.html", of=of)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<p class="soft">logit <bdi>&quot; ו&quot;</bdi> − logit <bdi>&quot; ה&quot;</bdi> = +1.5' in page
    assert f'logit \\" ו\\"{LTR_MARK} − logit \\" ה\\"{LTR_MARK} = +1.5' in page  # what the script shows
    texts = made(["או", *WORDS], target=e.target), made(target=e.target)
    each = Explanations(replace(e, method=method) for e in texts for method in ("lrp", "attnlrp"))
    assert "<td>logit <bdi>&quot; ו&quot;</bdi> = +1.5</td>" in each.to_html()


def test_a_line_in_order():
    assert in_order('logit " ו" − logit "are" = −2.5') == f'logit " ו"{LTR_MARK} − logit "are" = −2.5'
    assert in_order("no token") == "no token"
