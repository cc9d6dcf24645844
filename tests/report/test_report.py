"""Reports: numbers recomputed by hand, the paper's data against its source, every format, and what a page may contain."""

import csv
import io
import itertools
import json
import logging
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import browser
import numpy as np
import pytest
from evaluation_tools import made_up
from support import SHARED, needs_shared

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx import report as package
from lrpx.benchmark.kinds import KINDS
from lrpx.errors import InputError
from lrpx.evaluation.metrics import bootstrap, random_baseline, score
from lrpx.evaluation.records import METRICS, find_runs, open_run
from lrpx.methods import METHODS as REGISTERED
from lrpx.report import FORMATS, numbers, paper, report, tables, write
from lrpx.report.charts import metric_bars
from lrpx.report.examples import examples, units_from_tokens
from lrpx.report.results import method_label, methods_in, results_of

pq = pytest.importorskip("pyarrow.parquet")

METHODS = ["lrp", "attnlrp", "gradient-l1", "gradient-l2", "gradient-x-input", "alti-logit"]
TEXTS = [format for format in FORMATS if format != "parquet"]
ROLES = ("subject", "attractor", "other", "special")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("runs") / "one", METHODS, parts=2)


@pytest.fixture(scope="module")
def result(run):
    (found,) = results_of([run])
    return found


def records(run):
    return run.table().to_pylist()


# The numbers


@pytest.mark.parametrize("method", METHODS)
def test_means_are_over_the_correct_samples(run, result, method):
    chosen = [r for r in records(run) if r["method"] == method and r["correct"]]
    assert 0 < len(chosen) < 30
    assert result.methods[method].samples == len(chosen)
    for metric in METRICS:
        values = [r[metric] for r in sorted(chosen, key=lambda r: r["sample_id"])]
        expected = bootstrap(values)
        found = result.methods[method].scores[metric]
        assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
        assert found.low < found.mean < found.high


def test_accuracy_is_over_all_samples(run, result):
    correct = {r["sample_id"]: r["correct"] for r in records(run)}
    assert (result.samples, result.correct) == (30, sum(correct.values()))
    assert result.accuracy.mean == pytest.approx(sum(correct.values()) / 30)


def test_the_random_row_is_over_all_samples(run, result):
    samples = sorted({r["sample_id"]: r for r in records(run)}.values(), key=lambda r: r["sample_id"])
    expected = random_baseline([r["ground_truth"] for r in samples], [len(r["tokens"]) for r in samples])
    for metric in METRICS:
        assert result.random[metric] == pytest.approx((expected.mean[metric], expected.std[metric]))


def test_roles(run, result):
    """Read aloud: per sample, the share of all absolute relevance that is positive, or negative, on tokens of a role."""
    for method in METHODS:
        chosen = [r for r in records(run) if r["method"] == method and r["correct"]]
        for role in ROLES:
            shares = []
            for r in chosen:
                total = sum(abs(x) for x in r["relevance"])
                on_role = [x for x, own in zip(r["relevance"], r["roles"], strict=True) if own == role]
                shares.append((sum(x for x in on_role if x > 0) / total, -sum(x for x in on_role if x < 0) / total))
            assert result.methods[method].roles[role] == pytest.approx(tuple(np.mean(shares, axis=0)))
        tokens = [[r["roles"].count(role) / len(r["roles"]) for role in ROLES] for r in chosen]
        assert list(result.token_roles.values()) == pytest.approx(list(np.mean(tokens, axis=0)))
        assert sum(sum(pair) for pair in result.methods[method].roles.values()) == pytest.approx(1)


def test_the_better_norm_is_the_gradient(run, result):
    def average(method):
        return sum(result.methods[method].scores[m].mean for m in METRICS)

    better = max(("gradient-l1", "gradient-l2"), key=average)
    assert average("gradient-l1") != average("gradient-l2")
    assert result.norm == better
    assert result.reported("gradient") is result.methods[better]
    assert methods_in([result]) == ["alti-logit", "lrp", "attnlrp", "gradient", "gradient-x-input"]
    norms = tables.norms([result])
    assert [name for name, _ in norms.rows] == ["Gradient, L1", "Gradient, squared L2"]
    told = f"Gradient: the better norm, {method_label(better).removeprefix('Gradient, ')} for made-up."
    assert told in tables.scores([result]).caption


def test_best_and_second_best():
    def ranks(*values):
        body = [(str(n), [[tables.TableCell(v) if v else tables.NONE]]) for n, v in enumerate(values)]
        return [cells[0][0].rank for _, cells in tables._ranked(body)]

    assert ranks("0.100", "0.300", "0.200") == [0, 1, 2]
    assert ranks("0.300", "0.300", "0.200") == [1, 1, 0]  # two firsts: no second, as in the paper
    assert ranks("0.300", "0.200", "0.200", "0.100") == [1, 2, 2, 0]
    assert ranks("0.300", None, "0.200") == [1, 0, 2]
    assert ranks("1.000", None) == [0, 0]  # nothing to compare with


def test_the_main_table_has_the_layout_of_the_paper(result):
    table = tables.scores([result])
    assert table.groups == [("made-up", ["PG2", "MRR", "RMA", "PTA"])]
    assert [name for name, _ in table.rows] == [
        "ALTI-Logit",
        "LRP",
        "AttnLRP",
        "Gradient",
        "Gradient×Input",
        "Chance, mean",
        "Chance, ±std",
    ]
    for column in range(4):
        cells = [groups[0][column] for _, groups in table.rows[:-2]]
        values = [float(cell.text) for cell in cells]
        assert [cell.rank == 1 for cell in cells] == [v == max(values) for v in values]


# Runs


def test_the_method_random_is_not_called_like_the_baseline(tmp_path):
    run = made_up(tmp_path / "run", ["lrp", "random"])
    results = results_of([run])
    table = tables.scores(results)
    assert [name for name, _ in table.rows] == ["LRP", "Random", "Chance, mean", "Chance, ±std"]
    assert "Chance: relevance drawn uniformly" in table.caption
    assert "Random is a method" in table.caption
    assert "Random" not in tables.scores(results_of([made_up(tmp_path / "other", ["lrp"])])).caption
    labels = re.findall(r'class="label"[^>]*>(.*?)</text>', metric_bars(results, "mrr"))
    assert labels == ["LRP", "Random", "Chance"]
    kinds = {(row["method"], row["metric"]) for row in numbers.rows(results)}
    assert {("random", "mrr"), ("chance", "mrr")} <= kinds


def test_runs_of_one_model_share_a_column(tmp_path, caplog):
    made_up(tmp_path / "a", ["lrp", "attnlrp"])
    made_up(tmp_path / "b", ["attnlrp", "theirs"])
    made_up(tmp_path / "c", ["lrp"], model={"name": "another", "weights": "99"})
    found = results_of(find_runs([tmp_path]))
    assert [(r.label, list(r.methods)) for r in found] == [
        ("made-up", ["lrp", "attnlrp", "theirs"]),
        ("another", ["lrp"]),
    ]
    assert "attnlrp is in an earlier run already" in caplog.text
    assert methods_in(found) == ["lrp", "attnlrp", "theirs"]
    assert tables.scores(found).rows[2][1][1] == [tables.NONE] * 4  # the other model has no such method


@pytest.mark.parametrize(
    "change", [{"selection": "55"}, {"model": {"dtype": "bfloat16"}}, {"model": {"weights": "77"}}], ids=str
)
def test_other_samples_or_weights_stand_apart(tmp_path, change):
    made_up(tmp_path / "a", ["lrp"])
    made_up(tmp_path / "b", ["lrp"], **change)
    assert [r.label for r in results_of(find_runs([tmp_path / "a", tmp_path / "b"]))] == ["made-up (a)", "made-up (b)"]


def test_labels_are_unique(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    for n, path in enumerate(paths):
        made_up(path, ["lrp"], selection=str(n))
    found = [r.label for r in results_of(find_runs(paths))]
    assert found == [f"made-up ({paths[0]})", f"made-up ({paths[1]})", "made-up (c)"]


def test_an_unfinished_run_says_so(tmp_path):
    made_up(tmp_path / "run", ["lrp"], parts=3, done=2)
    (found,) = results_of(find_runs([tmp_path / "run"]))
    assert found.samples == 20
    for kind in ("terminal", "markdown", "latex", "html"):
        assert "not finished: 2 of 3 parts" in " ".join(report([tmp_path / "run"], format=kind).split())


def test_failures_are_told(tmp_path):
    def fail(record):
        if record.sample_id == 993 and record.method == "attnlrp":
            nothing = dict.fromkeys(("relevance", "value", "residual", *METRICS))
            return record._replace(**nothing, error="ValueError: no")
        return record

    run = made_up(tmp_path / "run", ["lrp", "attnlrp"], change=fail)
    (found,) = results_of([run])
    assert (found.samples, found.failed) == (30, 1)
    assert found.methods["lrp"].samples == found.correct == found.methods["attnlrp"].samples + 1
    assert found.notes == ("AttnLRP failed on 1 of 30 samples, which it is not scored on.",)
    assert "failed" in tables.accuracy([found]).groups[0][1]


def test_a_method_without_a_correct_sample_is_left_out(tmp_path, caplog):
    def wrong(record):
        return record._replace(correct=False)

    run = made_up(tmp_path / "run", ["lrp"], change=wrong)
    (found,) = results_of([run])
    assert found.methods == {}
    assert "lrp: no correctly predicted sample was explained" in caplog.text
    for kind in TEXTS:
        assert "0.000" in report([run.path], format=kind) or kind == "csv"


# The paper


@needs_shared(SHARED / "paper.tex")
def test_the_papers_numbers_are_those_of_its_source():
    text = (SHARED / "paper.tex").read_text(encoding="utf-8")
    body = text[text.index(r"Token-level accuracy of the XAI-methods") :]
    plain = re.sub(r"\\(textbf|underline)\{([^}]*)\}", r"\2", body)
    names = {
        "ALTI-Logit": "alti-logit",
        "LRP": "lrp",
        "AttnLRP": "attnlrp",
        "Gradient": "gradient",
        r"Gradient$\times$Input": "gradient-x-input",
    }
    order = ["bert-base-uncased", "GPT2-small", "Llama-3.2-1B", "bert-large-uncased", "GPT2-XL", "Llama-3.2-3B"]
    found = {name: {} for name in order}
    random = []
    upper = 0
    for line in plain.splitlines():
        cells = [re.sub(r"[{}\s]", "", c) for c in line.split(r"\\")[0].split("&")]
        if r"\texttt{bert-large-uncased}" in line:
            upper = 3
        if len(cells) == 13 and all(re.fullmatch(r"-|\d\.\d+", c) for c in cells[1:]):
            for k in range(3):
                numbers = cells[1 + 4 * k : 5 + 4 * k]
                if numbers[0] != "-" and cells[0] in names:
                    found[order[upper + k]][names[cells[0]]] = tuple(map(float, numbers))
            if "Random" in cells[0]:
                random.append([tuple(map(float, cells[1 + 4 * k : 5 + 4 * k])) for k in range(3)])
        if r"\end{table*}" in line:
            break
    assert {model.name: model.scores for model in paper.MODELS} == found
    assert len(random) == 2
    for model in paper.MODELS:
        assert model.random == tuple(row[order.index(model.name) % 3] for row in random)

    table = text[text.index(r"label{table:prediction_accuracy}") - 2500 :]
    for model in paper.MODELS:
        line = next(x for x in table.splitlines() if rf"\texttt{{{model.name}}}" in x and x.count("&") == 7)
        cells = [c.strip() for c in line.split(r"\\")[0].split("&")][1:]
        expected = [f"{model.accuracy:.3f}", model.parameters, str(model.layers), str(model.heads), str(model.width)]
        assert cells[:5] == expected
        if cells[5] != "same":
            assert cells[5:] == [str(model.vocabulary), model.tokenizer]
        assert re.search(
            rf"benchmark made of {model.samples:,}|of {model.samples} samples|of {model.samples:,} samples", text
        )


def test_the_papers_ranks_come_out_again():
    """What the paper prints bold and underlined, for one of its columns with a tie and one without."""
    table = tables.scores(results_of([], compare_paper=True))
    column = {label: n for n, (label, _) in enumerate(table.groups)}

    def ranks(model, metric):
        return [groups[column[f"{model} (paper)"]][metric].rank for _, groups in table.rows[:5]]

    assert ranks("bert-base-uncased", 0) == [0, 0, 1, 1, 0]
    assert ranks("Llama-3.2-1B", 0) == [2, 2, 1, 0, 0]
    assert ranks("GPT2-small", 2) == [2, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("openai-community/gpt2", "GPT2-small"),
        ("gpt2", "GPT2-small"),
        ("gpt2-xl", "GPT2-XL"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("meta-llama/Llama-3.2-1B", "Llama-3.2-1B"),
        ("meta-llama/Llama-3.2-1B-Instruct", None),
        ("mini-gpt2", None),
    ],
)
def test_the_papers_models_stand_beside_ones_own(tmp_path, name, twin):
    run = made_up(tmp_path / "run", ["lrp"], model={"name": name})
    labels = [r.label for r in results_of([run], compare_paper=True)]
    assert len(labels) == 7
    assert labels[0] == name
    if twin:
        assert labels[1] == f"{twin} (paper)"
    assert set(labels[1:]) == {f"{model.name} (paper)" for model in paper.MODELS}
    assert [r.label for r in results_of([run])] == [name]
    charts = report([run.path], format="html", compare_paper=True)
    chart = charts[charts.index("<h2>By metric") : charts.index("Lines: 95 %")]
    assert ("(paper)" in chart) == (twin is not None)  # charts compare like with like; tables show all


# Formats


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    made_up(folder / "a", METHODS, model={"name": "a_model & <co>"})
    made_up(folder / "b", ["lrp", "gradient-l1", "gradient-l2", "theirs|own"], model={"name": "b"}, seed=1)
    return folder


def test_csv_has_every_number(two):
    lines = list(csv.DictReader(io.StringIO(report([two], format="csv"))))
    found = {(x["model"], x["method"], x["metric"]): x for x in lines}
    for r in results_of(find_runs([two])):
        for method, scored in r.methods.items():
            for metric in METRICS:
                line = found[r.label, method, metric]
                assert tuple(float(line[k]) for k in ("mean", "low", "high")) == tuple(scored.scores[metric])
                assert int(line["samples"]) == scored.samples
            for role in ROLES:
                pair = tuple(
                    float(found[r.label, method, f"{role}_{sign}"]["mean"]) for sign in ("positive", "negative")
                )
                assert pair == scored.roles[role]
        assert float(found[r.label, "", "accuracy"]["mean"]) == r.accuracy.mean
        for fact in ("layers", "heads", "width", "vocabulary"):
            assert int(found[r.label, "", fact]["mean"]) == r.facts[fact]
        assert found[r.label, "", "tokenizer"]["text"] == r.facts["tokenizer"]
        assert int(found[r.label, "", "correct"]["mean"]) == r.correct
        assert float(found[r.label, "chance", "mrr"]["std"]) == r.random["mrr"][1]
    assert {x["source"] for x in lines} == {"run"}
    assert "paper" in {
        x["source"] for x in csv.DictReader(io.StringIO(report([two], format="csv", compare_paper=True)))
    }


def test_parquet_has_the_numbers_of_the_csv(two, tmp_path):
    write([two], output=tmp_path / "report.parquet")
    table = pq.read_table(tmp_path / "report.parquet").to_pylist()
    lines = list(csv.DictReader(io.StringIO(report([two], format="csv"))))
    assert len(table) == len(lines) > 50
    for row, line in zip(table, lines, strict=True):
        assert row.keys() == line.keys()
        for name, value in row.items():
            if isinstance(value, float):
                assert float(line[name]) == value
            else:
                assert line[name] == ("" if value is None else str(value))
    with pytest.raises(InputError, match=r"Parquet needs a file: output='report\.parquet'"):
        write([two], format="parquet")
    with pytest.raises(InputError, match="Parquet needs a file"):
        report([two], format="parquet")


@pytest.mark.parametrize("format", ["terminal", "markdown", "latex", "html"])
def test_models_on_different_samples_are_warned_of_in_every_head(tmp_path, format):
    made_up(tmp_path / "a", ["lrp"], samples=20, model={"name": "a"})
    made_up(tmp_path / "b", ["lrp"], samples=20, model={"name": "b"})
    assert "different samples" not in report([tmp_path], format=format)
    made_up(tmp_path / "c", ["lrp"], samples=12, model={"name": "c"})
    told = " ".join(report([tmp_path], format=format).split())
    warned = told.count("The models are scored on different samples: a 20; b 20; c 12; 12 of them are the same.")
    tables = {"terminal": 3, "markdown": 4, "latex": 4, "html": 3}[format]
    assert warned == tables
    head = told.index("The models are scored")
    assert told.index("Accuracy of the explanations") < head < told.index("Chance, mean")


def test_subject_and_attractor_differ_for_people_who_do_not_see_green():
    """In lightness, too: the colours of the page, as deuteranopes see them (Machado et al. 2009)."""
    css = (Path(package.__file__).parent / "page.css").read_text(encoding="utf-8")
    named = dict(re.findall(r"\.(subject|attractor|other|special)\{fill:(#\w{6})", css))
    seen = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])

    def lab(colour):
        srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = seen @ np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        x, y, z = np.cbrt(to_xyz @ linear.clip(0, 1) / [0.9505, 1, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    def distance(a, b):
        return np.linalg.norm(lab(a) - lab(b))

    assert distance(named["subject"], named["attractor"]) > 80
    assert distance("#2a8f5b", "#d4572f") < 40  # a pair that is told apart by its hue alone
    assert min(distance(a, b) for a, b in itertools.combinations(named.values(), 2)) > 20
    assert "url(#hatch)" in css


def table_numbers(text):
    return re.findall(r"\d\.\d{3}", text)


def expected_numbers(two):
    main = tables.scores(results_of(find_runs([two])))
    return [[cell.text for group in groups for cell in group if cell is not tables.NONE] for _, groups in main.rows]


def test_markdown(two):
    text = report([two], format="markdown")
    assert not re.search(r"\x1b", text)
    main = text[: text.index("## 95 %")]
    lines = [line for line in main.splitlines() if line.startswith("| ")]
    assert lines[0].startswith(r"|  | a\_model & &lt;co>: PG2 |")
    assert [table_numbers(line) for line in lines[1:]] == expected_numbers(two)
    assert r"| theirs\|own |" in main
    cells = len(re.split(r"(?<!\\)\|", lines[0]))
    assert all(len(re.split(r"(?<!\\)\|", line)) == cells for line in lines)
    assert "**" in main
    assert "<u>" in main


@pytest.mark.parametrize("width", [50, 80, 140, 400])
def test_terminal(two, width):
    text = report([two], width=width)
    assert "\x1b" not in text
    assert all(len(line) <= width for line in text.splitlines())
    rows_of_lrp = [line for line in text[: text.index("Norms")].splitlines() if line.startswith("LRP ")]
    assert sum(len(re.findall(r"±", line)) for line in rows_of_lrp) == 8
    assert len(rows_of_lrp) == {50: 4, 80: 2}.get(width, 1)  # side by side where there is room
    assert "…" not in text
    assert re.search(r"\d\.\d{3}\* ", text)
    assert "Best: *, second best: +." in " ".join(text.split())


def test_terminal_is_text_in_a_notebook_too(two, monkeypatch, capsys):
    expected = report([two], width=100)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert report([two], width=100) == expected
    assert not capsys.readouterr().out


def test_terminal_with_colours(two):
    text = report([two], color=True, width=132)
    assert "\x1b[1m" in text  # bold
    assert "\x1b[4m" in text  # underlined
    assert "*" not in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert all(len(line) <= 132 for line in plain.splitlines())


def test_latex(two):
    text = report([two], format="latex", compare_paper=True)
    assert r"\texttt{a\_model \& \textless{}co\textgreater{}}" in text
    assert r"Gradient$\times$Input" in text
    assert r"\textbf{" in text
    assert r"\underline{" in text
    main = text[: text.index("confidence intervals")]
    line = next(x for x in main.splitlines() if x.startswith("LRP &"))
    assert line.count("&") == 12
    assert text[: text.index(r"\begin{figure}")].isascii()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(two, tmp_path):
    (tmp_path / "report.tex").write_text(report([two], format="latex", compare_paper=True))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


class Page(HTMLParser):
    """Checks nesting and collects tags, attributes and text."""

    VOID = ("meta", "br", "link", "img", "hr", "line", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.data = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.data.append(data)


def test_html_is_one_self_contained_page(two):
    text = report([two], format="html", compare_paper=True)
    page = Page(text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"https?://|url\((?!#)|@import", text)
    assert not any(name.startswith("on") or name in ("href", "src") for name, _ in page.attributes)
    assert page.tags.count("svg") == 4 + 2 + 1  # a chart per metric, the roles of each model, and the hatching
    told = "".join(page.data)
    assert "a_model & <co>" in told  # escaped once, and everywhere
    assert "theirs|own" in told
    main = text[text.index("<h2>Accuracy of the explanations") : text.index("<h2>By metric")]
    assert "<b>" in main
    assert "<u>" in main
    shown = [re.sub(r"<small>.*?</small>", "", line) for line in re.findall(r"<tr class=.*?</tr>", main)]
    numbers = [table_numbers(line) for line in shown]
    own = expected_numbers(two)
    assert [row[: len(mine)] for row, mine in zip(numbers, own, strict=False)] == own


@pytest.mark.parametrize(
    ("tasks", "truth", "attractors"),
    [
        ([None], "subject", "Attractors: nouns of the other number between subject and verb."),
        (["blimp"], "deciding word", "Attractors: nouns of the other number"),
        (["haystack"], "needle", "Attractors: values of the other needles."),
        ([None, "haystack"], "ground truth", "Attractors: words that could be taken for the ground truth."),
    ],
)
def test_a_report_calls_the_ground_truth_by_its_name(tmp_path, tasks, truth, attractors):
    runs = [
        made_up(tmp_path / str(n), ["lrp"], benchmark={"task": task} if task else {}, model={"name": f"model-{n}"})
        for n, task in enumerate(tasks)
    ]
    html, latex = (
        " ".join(report([r.path for r in runs], format=format, examples=1).split()) for format in ("html", "latex")
    )
    assert f"<h1>Do explanations point at the {truth}?</h1>" in html
    assert f"a {truth} token is among the top 2" in html
    for text in (html, latex):
        assert attractors in text
    roles = report([r.path for r in runs], format="markdown").split("by role")[1].split("\n|")[1]
    assert f": {truth} | " in roles
    assert roles.count("subject") == (tasks == [None])
    assert f'<i class="subject"></i>{truth}</span>' in html
    assert re.search(rf"<title>[^<]*, {truth}: ", html)
    own = "subject" if tasks[0] is None else truth  # an example is of one run
    assert f"The {own} is <u" in html
    assert f"The {own} is \\underline{{underlined}}" in latex


def test_html_bars_are_as_long_as_the_numbers(two):
    found = results_of(find_runs([two]))
    chart = package.charts.metric_bars(found, "mrr")
    widths = {
        (label, name): float(width)
        for label, name, width in re.findall(
            r"<title>(.*?), (.*?): .*?</title>\s*<rect [^>]*?width=\"([\d.]+)\"", chart
        )
    }
    a, b = found
    full = widths["b", "LRP"] / b.methods["lrp"].scores["mrr"].mean
    assert widths["a_model &amp; &lt;co&gt;", "AttnLRP"] == pytest.approx(
        full * a.methods["attnlrp"].scores["mrr"].mean, abs=0.2
    )
    assert widths["b", "Chance"] == pytest.approx(full * b.random["mrr"][0], abs=0.2)


def test_html_roles_add_up(result):
    chart = package.charts.role_bars(result, KINDS["subject-verb"])
    bars = re.findall(r"<title>(.*?), (\w+): .*?</title>\s*<rect [^>]*?width=\"([\d.]+)\"", chart)
    total = {}
    for name, _, width in bars:
        total[name] = total.get(name, 0) + float(width)
    assert set(total) == {"tokens", *(method_label(m) for m in methods_in([result]))}
    assert list(total.values()) == pytest.approx([total["tokens"]] * len(total), abs=1)


# Examples


@pytest.mark.browser
@pytest.mark.parametrize("width", [browser.PHONE, browser.DESKTOP])
@pytest.mark.parametrize("own", ["mine", "a method of my own with a long name"])
def test_a_reader_can_tell_whose_each_map_is(new_page, tmp_path, width, own):
    made_up(tmp_path / "run", ["lrp", "gradient-l1", "gradient-l2", own])
    (tmp_path / "page.html").write_text(report(tmp_path / "run", format="html"), encoding="utf-8")
    page = new_page(width)
    page.goto((tmp_path / "page.html").as_uri())
    example = page.locator(".example").first
    if own == "mine" and width == browser.DESKTOP:
        gutter = example.locator(".gutter:visible").inner_text()
        assert all(name in gutter for name in ("LRP", "Gradient", own))
    else:
        assert re.search(rf"1: LRP · 2: Gradient, .* · 3: {own}", example.inner_text())
    left = "each => each.getBoundingClientRect().left"
    assert example.locator(".grid").evaluate(left) - example.evaluate(left) < 5  # nothing stands beside a map
    assert example.locator(".columns").evaluate("each => each.offsetWidth") > width * 0.6
    assert not browser.wider_than_window(page)


def test_examples_are_the_highest_differences(run, result):
    found = examples(result, 5)
    values = {r["sample_id"]: r["value"] for r in records(run) if r["correct"]}
    best = sorted(values, key=lambda i: -values[i])[:5]
    assert [e.sample_id for e in found] == best
    by_key = {(r["sample_id"], r["method"]): r for r in records(run)}
    for example in found:
        shown = [m if m != "gradient" else result.norm for m in methods_in([result])]
        assert [e.method for e in example.explanations] == [method_label(m) for m in shown]
        for method, e in zip(shown, example.explanations, strict=True):
            record = by_key[example.sample_id, method]
            assert e.relevance.tolist() == record["relevance"]
            assert e.tokens == record["tokens"]
            assert (e.value, e.position) == (record["value"], record["position"])
            assert (e.target.text, e.contrast.text) == ("are", "is")


@pytest.mark.parametrize("format", ["latex", "html"])
def test_methods_without_a_sign_are_said_to_have_none(run, result, format, tmp_path):
    """Neither a side of the chart of roles nor a colour says anything for or against, and their maps have no sum."""
    text = " ".join(report([run.path], format=format, examples=2).replace("\\ ", " ").split())
    name = method_label(result.norm)
    assert f"{name} has no sign: there red says how much a token matters, for or against." in text
    if format == "html":
        assert "against it. Gradient has no sign: all of it stands to the right, whether for or against." in text
    for example in examples(result, 2):
        unsigned = {e.method for e in example.explanations if e.measures == "sensitivity"}
        assert unsigned == {name}
    signed = made_up(tmp_path / "run", ["lrp", "alti-logit"])
    assert "has no sign" not in report([signed.path], format=format, examples=2)


def of_ones_own(folder, name, **entry):
    """A run of a method that is not registered in this process, which its manifest describes."""
    path = made_up(folder, [name]).path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "own_methods": {name: {"options": {}, "function": "00", **entry}}}))
    return open_run(folder)


@pytest.mark.parametrize("format", ["latex", "html"])
def test_runs_say_whether_a_method_that_is_not_registered_has_a_sign(format, tmp_path):
    made_up(tmp_path / "a", ["lrp"])
    of_ones_own(tmp_path / "b", "mine", measures="sensitivity")
    of_ones_own(tmp_path / "c", "theirs", measures="scores")
    of_ones_own(tmp_path / "d", "older")  # before the manifest said it
    text = " ".join(report([tmp_path], format=format, examples=2).replace("\\ ", " ").split())
    assert "each map has its own scale. mine has no sign: there red says how much a token matters" in text
    if format == "html":
        assert "against it. mine has no sign: all of it stands to the right, whether for or against." in text
    (result,) = results_of(find_runs([tmp_path]))
    for example in examples(result, 2):
        measured = {e.method: e.measures for e in example.explanations}
        assert measured == {"LRP": "parts", "mine": "sensitivity", "theirs": "scores", "older": "parts"}


def test_a_map_of_a_method_that_is_not_registered_has_a_scale_and_a_sum_as_its_run_says(tmp_path):
    def bar(**entry):
        folder = tmp_path / entry.get("measures", "none")
        of_ones_own(folder, "mine", **entry)
        page = report([folder], format="html", examples=1)
        return page[page.index('<div class="example">') :]

    assert ">sum" in bar(measures="parts")
    assert ">sum" in bar()
    assert ">sum" not in bar(measures="sensitivity")


def test_a_registered_method_is_what_it_is_registered_as(tmp_path, monkeypatch):
    own = replace(REGISTERED["lrp"], name="mine", measures="scores")
    monkeypatch.setitem(REGISTERED, "mine", own)
    of_ones_own(tmp_path / "a", "mine", measures="sensitivity")
    assert "no sign" not in report([tmp_path], format="html", examples=1)


def test_examples_add_up(tmp_path):
    def parts(record):
        outside = 2.5 if record.method == "alti-logit" else 0.0
        return record._replace(residual=record.value and record.value - sum(record.relevance) - outside)

    (found,) = results_of([made_up(tmp_path / "run", ["lrp", "alti-logit"], change=parts)])
    alti, lrp = sorted(examples(found, 1)[0].explanations, key=lambda e: e.method)
    assert lrp.components == {}
    assert sum(alti.components.values()) == pytest.approx(2.5)
    assert alti.relevance.sum() + alti.residual + sum(alti.components.values()) == pytest.approx(alti.value)
    assert "outside" in report([tmp_path / "run"], format="html", examples=1)


def test_examples_of_all_runs_of_a_model(tmp_path):
    made_up(tmp_path / "a", ["lrp"])
    made_up(tmp_path / "b", ["theirs"])
    (found,) = results_of(find_runs([tmp_path]))
    assert all([e.method for e in x.explanations] == ["LRP", "theirs"] for x in examples(found, 2))
    page = report([tmp_path], format="html", examples=2)
    assert page.count('<div class="example">') == 2
    assert page.count('<section class="lrpx"') == 2  # a grid for each, with a row per method
    assert all(page.count(f"<th>{name}</th></tr>") or page.count(f"<th>{name}</th><th>") for name in ("LRP", "theirs"))
    assert '<div class="example">' not in report([tmp_path], format="html", examples=0)


@pytest.mark.parametrize(
    ("tokens", "special", "texts"),
    [
        (["the", "Ġkeys", "Ġare"], (), ["the", " keys", " are"]),
        (["Ġcaf", "Ã©", "s"], (), [" caf", "é", "s"]),
        (["Ġ", "ä¸", "Ń", "a"], (), [" ", "中", "a"]),  # one character over two tokens
        (["Ġ", "ä¸", "Ġa"], (), [" ", r"\xe4\xb8", " a"]),  # half a character
        (["[CLS]", "caf", "##é", "[SEP]"], (0, 3), ["[CLS]", " caf", "é", " [SEP]"]),
        (["<s>", "▁the", "▁keys"], (0,), ["<s>", " the", " keys"]),
        (["<|endoftext|>", "Ġa"], (0,), ["<|endoftext|>", " a"]),
    ],
)
def test_raw_pieces_become_readable(tokens, special, texts):
    units = units_from_tokens(tokens, [n in special for n in range(len(tokens))])
    assert [unit.text for unit in units] == texts
    assert [unit.start for unit in units] == [0, *(unit.end for unit in units[:-1])]
    assert units[-1].end == len(tokens)


SUBJECT = '<u class="s">'


def test_the_sentence_of_an_example(tmp_path):
    def causal(record):
        tokens = ["the", "Ġkey", "s", "Ġ<b>"]
        return record._replace(
            tokens=tokens,
            token_ids=[0, 1, 2, 3],
            roles=["other", "subject", "subject", "attractor"],
            ground_truth=[1, 2],
            relevance=np.arange(4.0),
            position=3,
        )

    def masked(record):
        return record._replace(
            tokens=["[CLS]", "key", "##s", "[MASK]", "old", "[SEP]"],
            token_ids=list(range(6)),
            roles=["special", "subject", "subject", "special", "other", "special"],
            ground_truth=[1, 2],
            relevance=np.arange(6.0),
            position=3,
        )

    for change, sentence in [
        (causal, f'the {SUBJECT}key</u>{SUBJECT}s</u> <u class="a">&lt;b&gt;</u> <span class="verb">are</span>'),
        (masked, f'{SUBJECT}key</u>{SUBJECT}s</u> <span class="verb">are</span> old'),
    ]:
        run = made_up(tmp_path / change.__name__, ["lrp"], change=change)
        assert f'<p class="sentence">{sentence}</p>' in report([run.path], format="html", examples=1)


# Bad input and writing


def test_bad_input(run, tmp_path):
    with pytest.raises(InputError, match=r"unknown format 'htlm'. Did you mean 'html'"):
        report([run.path], format="htlm")
    with pytest.raises(InputError, match="is not a run: "):
        report([tmp_path])
    with pytest.raises(InputError, match="no run given"):
        report([])
    made_up(tmp_path / "empty", ["lrp"], done=0)
    with pytest.raises(InputError, match="has no records yet: run the same evaluation again"):
        report([tmp_path / "empty"])
    manifest = made_up(tmp_path / "other", ["lrp"]).path / "manifest.json"
    manifest.write_text(re.sub(r'"schema": \d', '"schema": 99', manifest.read_text()))
    with pytest.raises(InputError, match="has schema 99, this version of lrpx reads"):
        open_run(tmp_path / "other")


def test_nothing_but_failures(tmp_path):
    def fail(record):
        nothing = dict.fromkeys(("relevance", "value", "residual", "correct", "predicted", *METRICS))
        return record._replace(**nothing, error="ValueError: no")

    run = made_up(tmp_path / "run", ["lrp"], change=fail)
    with pytest.raises(InputError, match=r"no sample could be explained. The column error"):
        report([run.path])


def test_write_goes_by_the_suffix(run, tmp_path, capsys):
    for suffix, start in [
        (".html", "<!doctype html>"),
        (".md", "## "),
        (".tex", r"\documentclass"),
        (".csv", "model,"),
    ]:
        write([run.path], output=tmp_path / f"report{suffix}", compare="paper")
        text = (tmp_path / f"report{suffix}").read_text(encoding="utf-8")
        assert text.startswith(start)
        assert "paper" in text
    write([run.path])
    assert capsys.readouterr().out.startswith("Accuracy of the explanations\n")
    write([run.path], format="csv")
    assert capsys.readouterr().out == report([run.path], format="csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"output": "report.2026"},
            r"no format goes with the suffix '.2026'. Use .*\.html, .*, or say which: format='html'",
        ),
        ({"output": "report.docx"}, r"no format goes with the suffix '.docx'. Use .*\.html, .*\.parquet\.$"),
        (
            {"output": "report.pdf", "format": "html"},
            r"does not go with output='report\.pdf'.* Type: output='report\.html'",
        ),
        ({"output": "none/report.html"}, "the folder .*none does not exist. Make it first: mkdir -p"),
        ({"output": "."}, "no format goes with"),
        ({"output": ".", "format": "csv"}, "is a folder"),
        ({"compare": "nature"}, "there are only the paper's numbers"),
    ],
)
def test_write_refuses_before_it_computes(run, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package, "results_of", None)
    with pytest.raises(InputError, match=message):
        write([run.path], **options)
    assert list(tmp_path.iterdir()) == []


def test_the_report_needs_no_torch(run):
    """Not one of its modules when it is imported, and no format when it is made."""
    made = """
import importlib, pkgutil, sys
sys.modules |= dict.fromkeys(("torch", "transformers"))  # whoever imports them fails
import lrpx.report
for module in pkgutil.iter_modules(lrpx.report.__path__, "lrpx.report."):
    importlib.import_module(module.name)
for format in ("html", "latex", "csv", "markdown", "terminal"):
    assert lrpx.report.report([sys.argv[1]], format=format)
"""
    done = subprocess.run([sys.executable, "-c", made, str(run.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_report_logs_nothing_when_all_is_well(run, caplog):
    with caplog.at_level(logging.DEBUG, logger="lrpx"):
        report([run.path], format="html")
    assert caplog.text == ""


# PGk, extensions, the paper's set-up


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_pointing_game_of_any_k(run, k):
    """From the records as they are: one ranking serves every k."""
    (found,) = results_of([run], k=k)
    assert found.metrics == (f"pg{k}", "mrr", "rma", "pta")
    for method in METHODS:
        chosen = [r for r in records(run) if r["method"] == method and r["correct"]]
        expected = score([r["relevance"] for r in chosen], [r["ground_truth"] for r in chosen], k=k).mean()
        for metric, value in expected.items():
            assert found.methods[method].scores[metric].mean == pytest.approx(value)
    samples = sorted({r["sample_id"]: r for r in records(run)}.values(), key=lambda r: r["sample_id"])
    lengths = [len(r["tokens"]) for r in samples]
    baseline = random_baseline([r["ground_truth"] for r in samples], lengths, k=k)
    assert found.random[f"pg{k}"] == pytest.approx((baseline.mean[f"pg{k}"], baseline.std[f"pg{k}"]))


@pytest.mark.parametrize("format", TEXTS)
def test_reports_of_another_k(two, format):
    """The paper's numbers are for k = 2: there is no such column of theirs."""
    text = report([two], format=format, k=4, compare_paper=True)
    assert ("pg4" if format == "csv" else "PG4") in text
    assert "pg2" not in text.lower()
    table = tables.scores(results_of(find_runs([two]), compare_paper=True, k=4))
    for (label, names), cells in zip(table.groups, dict(table.rows)["LRP"], strict=True):
        assert names == ["PG4", "MRR", "RMA", "PTA"]
        assert (cells[0] is tables.NONE) == label.endswith("(paper)")
        assert cells[1] is not tables.NONE


def test_a_tie_of_ranks_is_no_matter_of_rounding():
    """PGk is taken from 1 / rank: the comparison has to be exact for every rank and k that may occur."""
    for k in range(1, 200):
        assert [1.0 / rank >= 1.0 / k for rank in range(1, 200)] == [rank <= k for rank in range(1, 200)]


def test_alti_logit_of_a_masked_model_is_marked(tmp_path):
    def marks(folder):
        (found,) = results_of(find_runs([folder]))
        table = tables.scores([found])
        return {name: [c.mark for c in groups[0]] for name, groups in table.rows}, table.caption

    made_up(tmp_path / "causal", METHODS)
    made_up(tmp_path / "masked", METHODS, benchmark={"input": "masked"})
    cells, caption = marks(tmp_path / "causal")
    assert {mark for marks in cells.values() for mark in marks} == {""}
    assert "extension" not in caption
    cells, caption = marks(tmp_path / "masked")
    assert cells.pop("ALTI-Logit") == ["†"] * 4
    assert {mark for marks in cells.values() for mark in marks} == {""}
    assert "†: an extension of lrpx; there is no published ALTI-Logit for masked models." in caption
    for format, mark in (("markdown", "†"), ("html", "†"), ("latex", r"$^\dagger$"), ("terminal", "†")):
        text = report([tmp_path / "masked"], format=format)
        assert text.count(mark) >= 5
        assert mark not in report([tmp_path / "causal"], format=format)


def test_marks_keep_the_columns_in_line(tmp_path):
    made_up(tmp_path / "masked", METHODS, benchmark={"input": "masked"})
    text = report([tmp_path / "masked"])
    rows = [line for line in text.splitlines() if re.match(r"(ALTI-Logit|LRP|AttnLRP|Gradient) ", line)][:4]
    places = {tuple(m.start() for m in re.finditer(r"\.\d{3}", line)) for line in rows}
    assert len(places) == 1


def set_up_notes(folder, **changes):
    made_up(folder, ["lrp"], **changes)
    (found, *_) = results_of(find_runs([folder]), compare_paper=True)
    return found.notes


def test_every_difference_from_the_papers_set_up_is_told(tmp_path):
    (note,) = set_up_notes(
        tmp_path / "a",
        model={"name": "openai-community/gpt2"},
        benchmark={"parser": {"name": "en_core_web_sm", "version": "3.8.0", "spacy": "3.8.2"}},
        options={"limit": 30, "at": "embedding", "rules": "gamma=0.25", "tf32": True, "compile": True},
    )
    assert note == (
        "Not as in the paper: computed in float32 (paper: float64); TF32 matrix products; compiled passes; relevance taken at "
        "the embedding (paper: at layer 0); gamma=0.25 for layers with weights (paper: LRP-epsilon with epsilon = 0); "
        "30 samples (paper: 28,602); sentences of source.tsv (paper: lgd_dataset.tsv); subjects by en_core_web_sm 3.8.0, "
        "spaCy 3.8.2 (paper: en_core_web_trf, spaCy 3.7.3); torch 2.13.0 (paper: 2.3.0); transformers 5.24.0 (paper: 4.48.1)."
    )
    for format in ("terminal", "markdown", "latex", "html"):
        text = report([tmp_path / "a"], format=format, compare_paper=True)
        assert "Not as in the paper: computed in float32" in " ".join(text.split())
        assert "Not as in the paper" not in report([tmp_path / "a"], format=format)


def test_choices_that_change_the_numbers_are_told(tmp_path):
    options = {"at": "embedding", "rules": "gamma=0.25", "tf32": True}
    made_up(tmp_path / "a", ["lrp"], options=options, model={"dtype": "bfloat16"})
    made_up(tmp_path / "b", ["lrp"])
    told = (
        "Computed with relevance taken at embedding; gamma=0.25 for layers with weights; the model in bfloat16; TF32 matrix "
        "products."
    )
    assert [result.notes for result in results_of(find_runs([tmp_path / "a", tmp_path / "b"]))] == [(told,), ()]
    for format in ("terminal", "markdown", "latex", "html"):
        assert "Computed with relevance taken at embedding; gamma" in " ".join(
            report([tmp_path / "a"], format=format).split()
        )


def test_notes_are_paragraphs_of_their_own_in_markdown(tmp_path):
    for name in "ab":
        made_up(tmp_path / name, ["lrp"], options={"rules": "gamma=0.25"}, model={"name": name})
    text = report([tmp_path / "a", tmp_path / "b"], format="markdown")
    told = "Computed with gamma=0.25 for layers with weights."
    assert text.endswith(f"> a: {told}\n\n> b: {told}\n")


@pytest.mark.parametrize("samples", [1, 5])
def test_few_samples_have_neither_interval_nor_best(tmp_path, samples):
    """With five samples, even five differences of one sign could be chance."""
    right = tmp_path / "right"
    made_up(right, ["lrp", "attnlrp"], samples=samples, change=lambda record: record._replace(correct=True))
    (few,) = results_of(find_runs([right]))
    for table in tables.all_tables([few]):
        for _, [cells] in table.rows:
            assert not any(cell.interval or cell.rank for cell in cells)
    assert "Of fewer than 6 samples there is no interval, and no best." in tables.scores([few]).caption
    assert all(row["low"] is None for row in package.numbers.rows([few]))
    assert "nan" not in report([right], format="html").split("<body>")[1]
    assert package.charts.metric_bars([few], "mrr").count("whisker") == 3  # the three lines of chance


def test_six_samples_have_an_interval_and_a_best(result):
    shown = [cell for _, [cells] in tables.scores([result]).rows for cell in cells]
    assert any(cell.interval for cell in shown)
    assert any(cell.rank for cell in shown)
    caption = tables.scores([result]).caption
    assert f"correctly predicted samples ({result.correct} of 30 for {result.label}); best" in caption


def test_a_set_up_like_the_papers_has_nothing_to_tell(tmp_path):
    same = {
        "benchmark": {
            "published": "lgd_dataset.tsv",
            "parser": {"name": "en_core_web_trf", "version": "3.7.3", "spacy": "3.7.3"},
        },
        "versions": {"lrpx": "0.1.0", "torch": "2.3.0+cu121", "transformers": "4.48.1"},
    }
    assert set_up_notes(tmp_path / "a", model={"name": "mine", "dtype": "float64"}, **same) == ()
    (note,) = set_up_notes(tmp_path / "b", model={"name": "meta-llama/Llama-3.2-3B", "dtype": "float64"}, **same)
    assert note == "Not as in the paper: computed in float64 (paper: bfloat16); 30 samples (paper: 28,629)."
    (note,) = set_up_notes(tmp_path / "c", model={"name": "mine", "dtype": "float64"}, options={"limit": 30}, **same)
    assert note == "Not as in the paper: 30 samples, chosen by a limit (paper: all)."


@needs_shared(SHARED / "paper.tex")
def test_the_papers_set_up_is_what_it_says():
    text = (SHARED / "paper.tex").read_text(encoding="utf-8")
    for title, name in (("Spacy", "spacy"), ("Pytorch", "torch"), ("HuggingFace Transformers", "transformers")):
        assert rf"\item {title} {paper.SET_UP[name]}" in text
    assert rf"\texttt{{{paper.SET_UP['parser'].replace('_', chr(92) + '_')}}}" in text
    assert paper.SET_UP["source"] in text
    assert (
        r"using double precision, except for \texttt{Llama-3.2-3B}, where we use half precision \texttt{bfloat16}"
        in text
    )
    assert {m.name: m.dtype for m in paper.MODELS if m.dtype != "float64"} == {"Llama-3.2-3B": "bfloat16"}


@pytest.mark.parametrize("change", [{"options": {"at": "embedding"}}, {"options": {"rules": "gamma=0.25"}}], ids=str)
def test_relevance_from_elsewhere_stands_apart(tmp_path, change):
    made_up(tmp_path / "a", ["lrp"])
    made_up(tmp_path / "b", ["lrp"], **change)
    assert [r.label for r in results_of(find_runs([tmp_path / "a", tmp_path / "b"]))] == ["made-up (a)", "made-up (b)"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0: PGk looks at a whole number of tokens, 1 or more"),
        ({"k": 2.0}, r"k=2\.0"),
        ({"examples": -1}, "examples=-1: give the number of samples to show as heatmaps, 0 for none"),
    ],
)
def test_numbers_that_make_no_sense(run, options, message):
    with pytest.raises(InputError, match=message):
        report([run.path], **options)


# The heatmap figure


def test_the_heatmap_figure(run, result):
    """Per sample its sentence, and a line per method with a box per token: subject underlined, attractors dotted, verb green."""
    text = report([run.path], format="latex", examples=3)
    (body,) = re.findall(r"\\begin\{figure\}(.+?)\\end\{figure\}", text, flags=re.S)
    shown = examples(result, 3)
    lines = body.split(r"\lrpxmap")[1:]
    assert len(lines) == sum(len(e.explanations) for e in shown) == 3 * 5
    for example, maps in zip(shown, [lines[i : i + 5] for i in range(0, 15, 5)], strict=True):
        assert body.count(r"\lrpxverb{are}") == 3
        for e, drawn in zip(example.explanations, maps, strict=True):
            boxes = re.findall(r"\\lrpxtoken\{(\w{6})\}\{\w{6}\}\{(.+?)\}(?=[%\n}])", drawn)
            assert len(boxes) == len(example.units)
            scale = np.abs(e.relevance).max()
            for value, role, (background, label) in zip(e.relevance, example.roles, boxes, strict=True):
                red, _, blue = (int(background[i : i + 2], 16) for i in (0, 2, 4))
                assert (red > blue) == (value > 0) or abs(value) < 0.02 * scale
                assert (r"\underline" in label) == (role == "subject")
                assert (r"\lrpxattractor" in label) == (role == "attractor")
    assert {"subject", "attractor"} <= {role for example in shown for role in example.roles}
    assert re.search(r"\\lrpxattractor\{dotted\}", body)


@pytest.mark.parametrize("format", ["latex", "html"])
@pytest.mark.parametrize("count", [0, 2, 7])
def test_as_many_heatmaps_as_asked_for(run, format, count):
    text = report([run.path], format=format, examples=count)
    assert text.count(r"\quad(logit" if format == "latex" else '<div class="example">') == count


def test_a_figure_that_is_higher_than_a_page_breaks(run):
    text = report([run.path], format="latex", examples=20)
    assert r"\begin{figure}" not in text
    assert r"\clearpage" in text
    assert text.count(r"\quad(logit") == 20


def test_a_page_says_what_its_numbers_come_from(tmp_path):
    parser = {"name": "en_core_web_sm", "version": "3.8.0", "spacy": "3.8.2"}
    changes = {"ground_truth": "en_core_web_sm", "parser": parser}
    made_up(tmp_path / "a", ["lrp"], benchmark=changes, options={"at": "embedding", "rules": "gamma=0.25"})
    page = report([tmp_path / "a"], format="html")
    assert "source.tsv, subjects by en_core_web_sm 3.8.0, spaCy 3.8.2" in page
    assert "<dt>relevance at</dt><dd>the embedding, gamma=0.25 for layers with weights</dd>" in page
    made_up(tmp_path / "b", ["lrp"])
    page = report([tmp_path / "b"], format="html")
    assert "<dt>relevance at</dt><dd>the input</dd>" in page


def test_a_column_that_there_is_not_is_refused(run):
    with pytest.raises(
        InputError, match=r"columns: 'relevances' is no column of the records\. Did you mean 'relevance'"
    ):
        run.table(["sample_id", "relevances"])


def test_heatmaps_charts_and_rows_are_not_cut_in_print_and_headings_stay_with_what_follows(run):
    page = report([run.path], format="html")
    printed = page[page.index("@media print{body") : page.index("</style>")]
    whole = re.search(r"\n([^\n{}]*)\{break-inside:avoid\}", printed)[1].split(",")
    assert {".example", ".grid2>div", "svg", "table.t", "tr"} <= set(whole)
    joined = re.search(r"\n([^\n{}]*)\{break-after:avoid\}", printed)[1].split(",")
    assert {"h1", "h2", "h3", ".sentence", ".legend"} <= set(joined)
    assert ".scroll{overflow:visible}" in printed  # a page has no scrollbar
